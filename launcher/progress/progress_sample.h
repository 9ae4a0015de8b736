// SPDX-License-Identifier: Apache-2.0
// ProgressSample: what a worker reported last of its progress, read from the file that MUSTER_PROGRESS_FILE
// names. Pure but for read_progress(). The file holds either the page of a worker of the runtime
// (rendezvous/base/progress_page.h) or whatever another program writes there, of which the first line counts.
// Nothing in it is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::launcher {

inline constexpr std::size_t kProgressBytes = 512;  // as much is read

/// What else a report says of a training.
struct TrainingFigures {
  std::optional<double> loss;
  std::optional<double> throughput;  // of whatever is counted, per second

  friend bool operator==(const TrainingFigures&, const TrainingFigures&) = default;
};

struct ProgressSample {
  std::string text;  // "epoch 2 step 140/15000 all_reduce"; one clean line, may be empty
  bool is_page = false;
  bool paused = false;     // of a page: the worker has announced a pause
  bool warmed_up = false;  // of a page: the third step has begun, so that the slow first ones are over
  std::uint64_t mark = 0;  // differs from the last one if the worker has reported since; of a page: its moves
  std::string phase = {};  // "all_reduce"; empty: not told
  TrainingFigures figures = {};

  friend bool operator==(const ProgressSample&, const ProgressSample&) = default;
};

/// `bytes`: the file's first kProgressBytes. A page that is being written at this moment may be half new.
[[nodiscard]] ProgressSample parse_progress(std::string_view bytes);

/// How far a worker is, to be compared with others.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t step = 0;

  friend auto operator<=>(const Position&, const Position&) = default;
};

/// From "epoch 2/10 step 140 loss 0.31" or "Iteration: 77": the numbers behind such words. Nothing: it has
/// no step.
[[nodiscard]] std::optional<Position> position_in(std::string_view text);
/// Of "step 140/15000": 15000. Nothing: the steps of the epoch are not told.
[[nodiscard]] std::optional<std::int64_t> steps_in(std::string_view text);

/// From "loss 0.31 images/s 512", "loss=0.31, 512 tokens/s".
[[nodiscard]] TrainingFigures figures_in(std::string_view text);

/// What follows the numbers in a runtime's report: "all_reduce".
[[nodiscard]] std::string_view phase_in(std::string_view text);

/// Nothing: there is no report yet, or no plain file.
[[nodiscard]] std::optional<ProgressSample> read_progress(const std::string& path);

/// The first bytes of a plain file, which a worker may be writing to. Nothing: there is none.
struct FileStart {
  std::string bytes;
  std::uint64_t mark = 0;  // changes whenever the file does
};
[[nodiscard]] std::optional<FileStart> read_start(const std::string& path, std::size_t max_bytes);

}  // namespace muster::launcher
