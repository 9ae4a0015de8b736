// SPDX-License-Identifier: Apache-2.0
// ProgressWord: what a worker said last of its progress, read from the file that MUSTER_PROGRESS_FILE names.
// Pure. The file holds either the page of a worker of the runtime (rendezvous/base/progress_page.h) or
// whatever another program writes there, of which the first line counts. Nothing in it is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace muster::launcher {

inline constexpr std::size_t kProgressBytes = 512;  // as much is read

struct ProgressWord {
  std::string text;         // "epoch 2 step 140/15000 all_reduce"; one clean line, may be empty
  std::uint64_t moves = 0;  // of a page: rises with every word
  bool is_page = false;
  bool paused = false;     // of a page: nothing is to be expected
  bool under_way = false;  // of a page: the third step has begun, so that the slow first ones are over

  friend bool operator==(const ProgressWord&, const ProgressWord&) = default;
};

/// `bytes`: the file's first kProgressBytes. A page that is being written at this moment may show its words
/// mixed.
[[nodiscard]] ProgressWord parse_progress(std::string_view bytes);

/// How far a worker is, to be compared with others.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;

  friend auto operator<=>(const Position&, const Position&) = default;
};

/// From "epoch 2/10 step 140 loss 0.31" or "Iteration: 77": the numbers behind such words. Nothing: it has
/// no step.
[[nodiscard]] std::optional<Position> position_in(std::string_view text);
/// What is left of a runtime's word behind its numbers: "all_reduce".
[[nodiscard]] std::string_view phase_in(std::string_view text);

}  // namespace muster::launcher
