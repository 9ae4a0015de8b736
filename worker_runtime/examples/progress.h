// SPDX-License-Identifier: Apache-2.0
// Progress: what rank 0 shows while it trains: a bar that redraws itself on a terminal, one line per log
// interval elsewhere. Owned by the training loop, one thread. On other ranks it is silent.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace fashion {

/// printf's text, of at most 255 bytes.
template <class... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, pattern, arguments...);
  return buffer;
}

/// What a line shows; pure, so that its text is tested without a terminal.
struct ProgressView {
  int epoch = 0;  // 1-based
  int epochs = 0;
  std::int64_t step = 0;
  std::int64_t steps = 0;       // of the epoch
  double loss = 0;              // of the last window; NaN: none yet
  double steps_per_second = 0;  // 0: not known yet
  int images_per_step = 0;      // over all ranks
};

/// "epoch 1/2  step  3000/15000  loss 0.7312   4021 it/s  16084 images/s"
[[nodiscard]] std::string progress_line(const ProgressView& view);
/// The same as a bar that fits `columns`: "epoch 1/2 [=====>      ] 42%  loss 0.7312  4021 it/s  0:03"
[[nodiscard]] std::string progress_bar(const ProgressView& view, int columns);

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `enabled`: this is rank 0. A bar is drawn if `out` is a terminal.
  Progress(std::FILE* out, bool enabled);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  [[nodiscard]] bool draws_bar() const { return enabled_ && terminal_; }
  /// Redraws the bar if the last drawing is at least 100 ms old. Cheap enough to be called every few steps.
  void tick(const ProgressView& view, Clock::time_point now);
  /// A log interval has ended: a line where there is no bar.
  void interval(const ProgressView& view);
  /// A line of its own, above the bar.
  void say(const std::string& line);
  /// Takes the bar away.
  void clear();

 private:
  std::FILE* out_;
  bool enabled_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point last_{};
};

}  // namespace fashion
