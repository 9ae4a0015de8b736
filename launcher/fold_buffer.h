// SPDX-License-Identifier: Apache-2.0
// FoldBuffer: lines of many ranks, equal ones as one. A line waits until every rank has said it or its window
// is over; lines leave in the order in which they came, and those of one rank stay in that rank's order: a
// rank joins only entries behind the last one that it is in. Bounded: beyond kMaxEntries or kMaxBytes the
// oldest is due at once. Pure: time is an argument. Owned by a Screen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "launcher/std_map.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

class FoldBuffer {
 public:
  static constexpr std::size_t kMaxEntries = 20'000;
  static constexpr std::size_t kMaxBytes = 8 * 1024 * 1024;

  struct Entry {
    std::string text;
    Std stream = Std::kOut;
    std::vector<int> ranks;  // ascending
  };

  /// `ranks`: how many there are, numbered from 0; `speaking`: how many of them say anything.
  FoldBuffer(int ranks, int speaking, Millis window)
      : window_(window),
        speaking_(static_cast<std::size_t>(speaking)),
        last_(static_cast<std::size_t>(ranks), 0) {}

  void add(int rank, Std stream, std::string_view text, Instant now);

  /// The oldest entry if it is complete or its window is over; to be called until it gives nothing.
  [[nodiscard]] std::optional<Entry> take(Instant now);
  /// The oldest entry, whatever it waits for.
  [[nodiscard]] std::optional<Entry> take_oldest();
  /// When take() may have something again without an add().
  [[nodiscard]] std::optional<Instant> deadline() const;

 private:
  struct Pending {
    Entry entry;
    Instant due;
  };
  /// A view of the text of the oldest entry that has it: entries keep their place until they leave.
  struct Line {
    std::string_view text;
    Std stream;
    friend bool operator==(const Line&, const Line&) = default;
  };
  struct LineHash {
    std::size_t operator()(const Line& line) const noexcept {
      return std::hash<std::string_view>{}(line.text) + static_cast<std::size_t>(line.stream);
    }
  };
  /// Ascending numbers of the entries with one text: mostly one, which costs no memory of its own.
  struct Numbers {
    std::uint64_t first = 0;
    std::unique_ptr<std::deque<std::uint64_t>> behind;
  };

  Millis window_;
  std::size_t speaking_;
  std::deque<Pending> pending_;
  std::uint64_t first_ = 1;          // number of pending_.front()
  std::vector<std::uint64_t> last_;  // per rank: its last entry's number
  std::unordered_map<Line, Numbers, LineHash> numbers_;
  std::size_t bytes_ = 0;
};

/// "[x8]" for all of `of` ranks, "[x3 1,5-6]" for some, with `base` added to the numbers; with a host
/// "[host x8]".
[[nodiscard]] std::string fold_label(const std::vector<int>& ranks, int of, int base,
                                     const std::string& host = {});

}  // namespace muster::launcher
