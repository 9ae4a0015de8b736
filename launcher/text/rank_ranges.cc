// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/rank_ranges.h"

#include <fmt/format.h>

namespace muster::launcher {

std::string ranges(std::span<const int> sorted) {
  std::string out;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace muster::launcher
