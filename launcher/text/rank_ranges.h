// SPDX-License-Identifier: Apache-2.0
// Ranges of numbers, as to_ranges() of base/text.h writes them: "0-2,5" for {0, 1, 2, 5}. Ranks, CPUs (the
// kernel's list format, cpuset(7)), GPUs and exit codes are read so. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::launcher {

/// The numbers, sorted, each once; blanks and a newline at the end are allowed, and the empty text is the
/// empty list. Nothing: not such a list, a number beyond `most`, or more than 65,536 numbers.
[[nodiscard]] std::optional<std::vector<int>> parse_ranges(std::string_view text, int most = 65'535);

// StreamSelection: which standard streams of which local ranks -r or -t concern. Grammar: one digit 0-3 for
// all, or "rank:digit,rank:digit"; unlisted ranks get 0, a later entry wins. Ranks may have several digits
// (torchrun: one). Pure. Source: torch/distributed/elastic/multiprocessing/api.py (Std.from_str, to_map).

enum class Std : std::uint8_t { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

[[nodiscard]] constexpr bool has(Std set, Std stream) {
  return (static_cast<unsigned>(set) & static_cast<unsigned>(stream)) != 0;
}
[[nodiscard]] constexpr Std operator|(Std a, Std b) {
  return static_cast<Std>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

struct StreamSelection {
  Std others = Std::kNone;
  std::map<int, Std> by_rank;

  [[nodiscard]] Std of(int local_rank) const {
    const auto found = by_rank.find(local_rank);
    return found == by_rank.end() ? others : found->second;
  }
  [[nodiscard]] bool none() const;

  friend bool operator==(const StreamSelection&, const StreamSelection&) = default;
};

/// kInvalidArgument says what the grammar is.
[[nodiscard]] Result<StreamSelection> parse_stream_selection(std::string_view text);

}  // namespace muster::launcher
