// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/rank_ranges.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "launcher/text/split.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxNumbers = 65'536;

}  // namespace

std::string to_ranges(std::span<const int> sorted) {
  std::string out;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && std::int64_t{sorted[last + 1]} - sorted[last] == 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[last]);
    i = last + 1;
  }
  return out;
}

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
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace muster::launcher
