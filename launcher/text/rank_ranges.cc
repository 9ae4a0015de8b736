// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/rank_ranges.h"

#include <algorithm>

#include <climits>

#include "launcher/text/usage_error.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/split.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxNumbers = 65'536;

/// Of one digit from 0 to 3.
std::optional<Std> to_std(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  return static_cast<Std>(text[0] - '0');
}

}  // namespace

std::optional<std::vector<int>> parse_ranges(std::string_view text, int most) {
  std::vector<int> out;
  if (trimmed(text).empty()) return out;
  for (const std::string_view piece : split(text, ',')) {
    const std::string_view part = trimmed(piece);
    const auto dash = part.find('-');
    const auto first = parse_integer("", part.substr(0, dash), 0, most);
    const auto last =
        dash == std::string_view::npos ? first : parse_integer("", part.substr(dash + 1), 0, most);
    if (!first || !last || *last < *first) return std::nullopt;
    if (out.size() + static_cast<std::size_t>(*last - *first) >= kMaxNumbers) return std::nullopt;
    for (auto value = *first; value <= *last; ++value) out.push_back(static_cast<int>(value));
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

bool StreamSelection::none() const {
  return others == Std::kNone &&
         std::ranges::all_of(by_rank, [](const auto& entry) { return entry.second == Std::kNone; });
}

Result<StreamSelection> parse_stream_selection(std::string_view text) {
  StreamSelection out;
  if (const auto all = to_std(text)) {
    out.others = *all;
    return out;
  }
  for (std::string_view entry : split(text, ',')) {
    const auto rank = parse_integer("", take_front(entry, ':'), 0, INT_MAX);
    const auto streams = to_std(entry);
    if (!rank || !streams)
      return usage(
          "'{}' is neither 0, 1, 2 or 3 (none, stdout, stderr, both) nor a list "
          "local_rank:digit,local_rank:digit",
          text);
    out.by_rank[static_cast<int>(*rank)] = *streams;
  }
  return out;
}

}  // namespace muster::launcher
