// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/step_ledger.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster {

void StepLedger::note(std::int64_t generation, const Reached& reached, bool failed) {
  if (last.size() >= kMost) last.erase(last.begin());
  last.push_back({generation, reached});
  if (reached > best) {
    best = reached;
    fruitless = 0;
  } else if (failed && best.known()) {
    ++fruitless;
  }
}

void StepLedger::amend(std::int64_t generation, const Reached& reached) {
  if (last.empty() || last.back().generation != generation) return;
  last.back().reached = std::max(last.back().reached, reached);
  if (reached <= best) return;
  best = reached;
  fruitless = 0;
}

std::string StepLedger::verdict(int most) const {
  std::string out = fruitless == 1 ? "no step was gained by the last restart:"
                                   : fmt::format("no step was gained by the last {} restarts:", fruitless);
  // The generation that they are measured by, and theirs.
  const auto shown = std::min(last.size(), static_cast<std::size_t>(fruitless) + 1);
  for (std::size_t i = last.size() - shown; i < last.size(); ++i)
    out += fmt::format("{} {} {}{}", i == last.size() - shown ? " generation" : ",", last[i].generation,
                       i == last.size() - shown ? "reached " : "", to_text(last[i].reached));
  return out + fmt::format(" (--max-restarts-without-progress={})", most);
}

}  // namespace muster
