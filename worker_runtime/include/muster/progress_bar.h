// SPDX-License-Identifier: Apache-2.0
// ProgressBar: what rank 0 shows while it trains: a bar that redraws itself on a terminal, elsewhere a line
// per interval. On other ranks it is silent. Used by one thread. Writing that fails is not noticed. Source:
// tqdm; AverageMeter and ProgressMeter of PyTorch's examples/imagenet.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>

namespace muster {

/// What is shown. A value, so that its text can be had without a terminal.
struct ProgressView {
  int epoch = 0;  ///< counted from 1
  int epochs = 0;
  std::int64_t step = 0, steps = 0;  ///< done, and of the epoch
  // Of the last interval.
  double loss = std::numeric_limits<double>::quiet_NaN();  ///< the mean; NaN: none yet
  float lr = 0;
  double step_seconds = 0;                  ///< of one step, data included; 0: not known yet
  std::optional<double> data_seconds = {};  ///< of that, waiting for data
  double images_per_second = 0;             ///< over all ranks
};

/// "epoch 1/2  step  3000/15000  loss 0.7312  lr 0.001  data 0.1 ms  step 4.1 ms  16084 images/s  ETA 0:49";
/// ETA is the rest of the epoch, at the speed of the last interval.
[[nodiscard]] std::string progress_line(const ProgressView& view);
/// "epoch 1/2 [=====>      ]  42%  loss 0.7312  ETA 0:49  16084 images/s ...": as much of it as fits
/// `columns`.
[[nodiscard]] std::string progress_bar(const ProgressView& view, int columns);

class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  /// `enabled`: this is rank 0. A bar is drawn if `out` is a terminal.
  explicit ProgressBar(std::FILE* out, bool enabled = true);
  ~ProgressBar() { clear(); }
  ProgressBar& operator=(ProgressBar&&) = delete;  // nor copied

  /// An epoch begins, counted from 1, or goes on after `first_step` of its steps; so does an interval.
  void begin_epoch(int epoch, int epochs, std::int64_t steps, std::int64_t first_step = 0,
                   Clock::time_point now = Clock::now());
  /// So many steps of the epoch are done. Redraws the bar if that is 100 ms ago.
  void update(std::int64_t step, Clock::time_point now = Clock::now());

  /// What an interval came to.
  struct Interval {
    double loss = 0;          ///< the mean
    std::int64_t images = 0;  ///< over all ranks
    float lr = 0;
    std::optional<std::chrono::nanoseconds> data_time = {};  ///< DataLoader::wait_time()
  };
  /// An interval has ended and the next begins: a line where there is no bar.
  void interval(const Interval& interval, Clock::time_point now = Clock::now());

  /// A line of its own, above the bar; the newline is added.
  [[gnu::format(printf, 2, 3)]] void print(const char* format, ...);
  /// Takes the bar away.
  void clear();

 private:
  std::FILE* out_;
  bool enabled_, terminal_;
  bool drawn_ = false;
  ProgressView view_;
  std::int64_t interval_step_ = 0;
  std::chrono::nanoseconds data_time_{};
  Clock::time_point interval_begin_{}, last_drawn_{};
};

}  // namespace muster
