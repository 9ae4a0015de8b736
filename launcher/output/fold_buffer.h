// SPDX-License-Identifier: Apache-2.0
// FoldBuffer: lines of many ranks, equal ones as one. A line waits until every rank has said it or its window
// is over. Lines of one rank stay in that rank's order: it joins only entries behind the last one that it
// shares. What it alone has said since then is put before an older entry that it joins, so that a line of its
// own between two of all ranks does not keep the second from being one. Else lines leave as they came.
// Bounded: beyond kMaxEntries or kMaxBytes the oldest is due at once. Pure: time is an argument. Owned by a
// OutputFormatter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/text/rank_ranges.h"
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

  /// `ranks`: how many there are, numbered from 0; `active`: how many of them are shown.
  FoldBuffer(int ranks, int active, Millis window)
      : window_(window),
        active_(static_cast<std::size_t>(active)),
        sources_(static_cast<std::size_t>(ranks)) {}
  FoldBuffer(const FoldBuffer&) = delete;
  FoldBuffer& operator=(const FoldBuffer&) = delete;

  void add(int rank, Std stream, std::string_view text, Instant now);

  /// The oldest entry if it is complete or its window is over; to be called until it gives nothing.
  [[nodiscard]] std::optional<Entry> take(Instant now);
  /// The oldest entry, whatever it waits for.
  [[nodiscard]] std::optional<Entry> take_oldest();
  /// When take() may have something again without an add().
  [[nodiscard]] std::optional<Instant> deadline() const;

 private:
  static constexpr std::uint64_t kGap = std::uint64_t{1} << 32;  // between two lines as they come
  struct Pending;
  using Place = std::list<Pending>::iterator;
  /// By hash and place: those with one text beside each other, in their order. A search compares few texts.
  using Known = std::map<std::pair<std::size_t, std::uint64_t>, Place>;
  struct Pending {
    Entry entry;
    Instant due;
    std::uint64_t place;  // ascending; with room between, for entries that are put there
    Known::iterator known = {};
  };
  struct Source {
    std::uint64_t shared = 0;  // the place of the last entry that it is in with another rank
    std::deque<Place> own;     // those behind that, which are its alone
  };

  [[nodiscard]] std::optional<Place> joinable(std::size_t hash, std::string_view text, Std stream,
                                              int rank) const;
  [[nodiscard]] bool make_way(Place to, Source& source);
  void join(Place to, int rank);
  static void drop_up_to(Source& source, std::uint64_t place);

  Millis window_;
  std::size_t active_;
  std::list<Pending> pending_;
  std::uint64_t next_place_ = kGap;
  std::uint64_t left_ = 0;       // the place of the last entry that left
  std::vector<Source> sources_;  // by rank
  Known known_;
  std::size_t bytes_ = 0;
};

/// "[x8]" for all of `of` ranks, "[x3 1,5-6]" for some, with `base` added to the numbers; with a host
/// "[host x8]".
[[nodiscard]] std::string fold_label(const std::vector<int>& ranks, int of, int base,
                                     const std::string& host = {});

}  // namespace muster::launcher
