// SPDX-License-Identifier: Apache-2.0
// ProgressTracker: how far the generations of a job came, and how many restarts in a row led no further than
// what was reached before. A value: the coordinator keeps one in each round (membership.h), and a launcher
// that runs its only node without one keeps its own. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/protocol/world.h"

namespace muster {

struct ProgressTracker {
  struct Entry {
    std::int64_t generation = 0;
    StepProgress reached;
  };
  static constexpr std::size_t kMost = 8;

  StepProgress best;          ///< of all generations so far
  int no_progress_count = 0;  ///< restarts in a row whose generation failed without a step beyond `best`
  std::vector<Entry> last;    ///< of the last generations, kMost at most, the youngest at the end

  /// A generation is over. `failed`: not because nodes came or went of their own accord. Nothing is counted
  /// as long as no worker of any generation has told of a step: then it cannot be judged.
  void note(std::int64_t generation, const StepProgress& reached, bool failed);
  /// Of the generation that was noted last, if it is that one: a node tells late how far it came.
  void amend(std::int64_t generation, const StepProgress& reached);
  /// `most`: how many such restarts there may be; 0: any number.
  [[nodiscard]] bool exhausted(int most) const { return most > 0 && no_progress_count >= most; }
  /// "no step was gained by the last 2 restarts: generation 0 reached step 140, 1 step 140, 2 no step
  /// (--max-restarts-without-progress=2)".
  [[nodiscard]] std::string verdict(int most) const;
};

}  // namespace muster
