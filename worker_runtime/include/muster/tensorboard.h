// SPDX-License-Identifier: Apache-2.0
// SummaryWriter: scalars, histograms and images for TensorBoard, in an event file that `tensorboard --logdir`
// shows while training goes on. A thread of its own builds histograms, compresses images and writes: every
// two seconds, at flush() and at the end. add_*() copies what it is given into a bounded queue and never
// waits: when the disk is too slow and the queue is full, the summary is dropped and counted, and close()
// says how many were. An error of the disk ends the writing, not the run: it is printed once, flush() and
// close() return it, and what is added later is dropped. Thread-safe. One rank writes, usually
// rank 0. Source: torch.utils.tensorboard.SummaryWriter, tensorboard/compat/proto/{event,summary}.proto.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster {

struct SummaryWriterOptions {
  std::size_t max_queue_bytes = std::size_t{64} << 20;  ///< of values that wait for the thread
  std::chrono::milliseconds flush_interval{2000};
};

/// 8-bit pixels, row after row, the channels of a pixel together (HWC).
struct SummaryImage {
  std::span<const std::uint8_t> pixels;  ///< height * width * channels
  int height = 0;
  int width = 0;
  int channels = 3;  ///< 1: grey, 3: RGB, 4: RGBA
};

class SummaryWriter {
 public:
  /// Makes `log_dir` and in it events.out.tfevents.<seconds>.<host>.<pid>.<n>. kIo: the directory or file
  /// cannot be made.
  [[nodiscard]] static Result<std::unique_ptr<SummaryWriter>> create(
      const std::string& log_dir, const SummaryWriterOptions& options = {});
  /// close().
  virtual ~SummaryWriter() = default;
  SummaryWriter& operator=(SummaryWriter&&) = delete;  // nor copied

  virtual void add_scalar(std::string_view tag, double value, std::int64_t step) = 0;
  /// In TensorBoard's default buckets, each limit 1.1 times the one before. Values that are not finite are
  /// left out; a histogram without any other is not written.
  virtual void add_histogram(std::string_view tag, std::span<const float> values, std::int64_t step) = 0;
  /// kInvalidArgument: sizes that do not fit the pixels, or not 1, 3 or 4 channels.
  [[nodiscard]] virtual Result<void> add_image(std::string_view tag, const SummaryImage& image,
                                               std::int64_t step) = 0;

  /// Waits until all that was added is in the file (not: on the disk). Returns the first error of the disk.
  [[nodiscard]] virtual Result<void> flush() = 0;
  /// flush() and the end of the thread. By one thread.
  [[nodiscard]] virtual Result<void> close() = 0;

  /// Summaries that were not written: the queue was full, the disk failed, or they came after close().
  [[nodiscard]] virtual std::uint64_t dropped() const = 0;
  [[nodiscard]] virtual const std::string& path() const = 0;
};

}  // namespace muster
