// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/progress_tracker.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster {

void ProgressTracker::note(std::int64_t generation, const StepProgress& reached, bool failed) {
  if (last.size() >= kMost) last.erase(last.begin());
  last.push_back({generation, reached});
  if (reached > best) {
    best = reached;
    no_progress_count = 0;
  } else if (failed && best.known()) {
    ++no_progress_count;
  }
}

void ProgressTracker::amend(std::int64_t generation, const StepProgress& reached) {
  if (last.empty() || last.back().generation != generation) return;
  last.back().reached = std::max(last.back().reached, reached);
  if (reached <= best) return;
  best = reached;
  no_progress_count = 0;
}

std::string ProgressTracker::verdict(int most) const {
  std::string out = no_progress_count == 1
                        ? "no step was gained by the last restart:"
                        : fmt::format("no step was gained by the last {} restarts:", no_progress_count);
  // The generation that they are measured by, and theirs.
  const auto shown = std::min(last.size(), static_cast<std::size_t>(no_progress_count) + 1);
  for (std::size_t i = last.size() - shown; i < last.size(); ++i)
    out += fmt::format("{} {} {}{}", i == last.size() - shown ? " generation" : ",", last[i].generation,
                       i == last.size() - shown ? "reached " : "", to_text(last[i].reached));
  return out + fmt::format(" (--max-restarts-without-progress={})", most);
}

}  // namespace muster
