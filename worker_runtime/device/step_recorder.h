// SPDX-License-Identifier: Apache-2.0
// StepRecorder: a device's means to record what a step enqueues and to enqueue it again as one: a CUDA graph
// (cuda_graph.cc). StepGraph decides when (step_graph.h). Made by Device::make_step_recorder(), used by the
// same thread as those kernels and destroyed before them. Failure: the first call that failed, of the step or
// of the recording.
#pragma once

#include <cstddef>
#include <functional>

#include <muster/result.h>

namespace muster {

class StepRecorder {
 public:
  using Step = std::function<Result<void>()>;

  virtual ~StepRecorder() = default;
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Calls `step`, of whose work nothing runs, and keeps it as `slot` (below StepGraphPlan::kSlots) in place
  /// of what was there. After a failure the slot is empty and the device takes work as before.
  [[nodiscard]] virtual Result<void> record(std::size_t slot, const Step& step) = 0;
  /// Enqueues what was recorded as `slot`.
  [[nodiscard]] virtual Result<void> replay(std::size_t slot) = 0;
  /// Puts mark 0 or 1 behind what has been enqueued, in place of its last one.
  [[nodiscard]] virtual Result<void> mark(std::size_t which) = 0;
  /// Blocks until the device has come to the mark.
  [[nodiscard]] virtual Result<void> wait(std::size_t which) = 0;
  /// Forgets it; an empty slot stays empty.
  virtual void drop(std::size_t slot) = 0;

 protected:
  StepRecorder() = default;
};

}  // namespace muster
