// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/stream_selection.h"

#include <algorithm>

#include <climits>
#include <fmt/format.h>

#include "launcher/text/split.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {
namespace {

bool is_std_digit(std::string_view text) {
  return text.size() == 1 && text[0] >= '0' && text[0] <= '3';
}

Std to_std(char digit) {
  return static_cast<Std>(digit - '0');
}

}  // namespace

bool StreamSelection::none() const {
  return others == Std::kNone && std::all_of(by_rank.begin(), by_rank.end(),
                                             [](const auto& entry) { return entry.second == Std::kNone; });
}

Result<StreamSelection> parse_stream_selection(std::string_view text) {
  StreamSelection out;
  if (is_std_digit(text)) {
    out.others = to_std(text[0]);
    return out;
  }
  for (const std::string_view entry : split(text, ',')) {
    const auto colon = entry.find(':');
    const auto rank = parse_integer("", entry.substr(0, colon), 0, INT_MAX);
    if (!rank || colon == std::string_view::npos || !is_std_digit(entry.substr(colon + 1)))
      return usage(
          "'{}' is neither 0, 1, 2 or 3 (none, stdout, stderr, both) nor a list "
          "local_rank:digit,local_rank:digit",
          text);
    out.by_rank[static_cast<int>(*rank)] = to_std(entry[colon + 1]);
  }
  return out;
}

}  // namespace muster::launcher
