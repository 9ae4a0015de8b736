// SPDX-License-Identifier: Apache-2.0
// StepGraph: runs a training step, on a GPU as one CUDA graph launch: one by one, the launches of a dozen
// kernels of a few microseconds are the step. Where nothing can be recorded it calls the function. Owned by
// the training loop (Trainer), one per stream, used by its thread only. The first step of a key is called
// (libraries load, NCCL connects), the second is captured, the following replay the capture: the function is
// then NOT called. It must only enqueue work on the stream (kernels, a ProcessGroup on the same stream),
// always the same work on the same addresses for one key, read nothing back, and may be called again for the
// same step; it may be several steps in a row. Every rank of a group must run the same keys in the same
// order: captured or not is a property of a collective. The host runs at most 2 * kRunAhead steps (or two
// replays) ahead of the device and then waits: whoever asks before a step whether the group is well hears of
// a lost rank within so many. Failure: a capture that fails on any rank is given up by all of them; that step
// and all after it are called (not where NCCL 2.28.9 takes NVLS for a captured sum or all-gather: it waits
// for all ranks while it captures; NCCL_GRAPH_REGISTER=0 forbids that). An error of the step, of a replay, or
// of the agreement is returned. Destroyed before the ProcessGroup whose collectives it captured (whose end
// would wait for it) and before the Device whose stream it uses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <muster/result.h>

#include "worker_runtime/device/device.h"

namespace muster {

/// What to do with the next step of a key: call it, capture it, or replay slot i; after give_up(), call it.
/// Pure. Keeps kSlots captures; the one used longest ago gives way.
class StepGraphPlan {
 public:
  static constexpr std::size_t kSlots = StepRecorder::kSlots;
  enum class Action { kCall, kCapture, kReplay };
  struct Decision {
    Action action = Action::kCall;
    std::size_t slot = 0;  // of the key; with kCall its former capture, if any, is to be dropped
    friend bool operator==(const Decision&, const Decision&) = default;
  };

  Decision next(std::uint64_t key) {
    if (gave_up_) return {Action::kCall, 0};
    ++clock_;
    std::size_t oldest = 0;
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots_[i];
      if (slot.seen > 0 && slot.key == key) {
        slot.last_used = clock_;
        if (slot.seen == 1) {
          slot.seen = 2;
          return {Action::kCapture, i};
        }
        return {Action::kReplay, i};
      }
      if (slot.last_used < slots_[oldest].last_used) oldest = i;
    }
    slots_[oldest] = {key, 1, clock_};
    return {Action::kCall, oldest};
  }

  /// A capture failed: one that failed for this key would fail for the next.
  void give_up() { gave_up_ = true; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    int seen = 0;                 // 0: empty, 1: called once, 2: captured
    std::uint64_t last_used = 0;  // 0: never
  };
  std::array<Slot, kSlots> slots_{};
  std::uint64_t clock_ = 0;
  bool gave_up_ = false;
};

struct StepGraphHooks {
  /// Whether every rank has its capture, asked after each capture and before anything of it runs; a
  /// collective. Empty: there is one rank.
  std::function<Result<bool>(bool captured_here)> agree = {};
  /// Called once, when captures are given up.
  std::function<void(const Error& reason)> on_give_up = {};
};

class StepGraph {
 public:
  static constexpr std::uint64_t kRunAhead = 32;
  using Step = StepRecorder::Step;

  /// `recorder`: Device::make_step_recorder(); nullptr: every step is called.
  explicit StepGraph(std::unique_ptr<StepRecorder> recorder, StepGraphHooks hooks = {})
      : recorder_(std::move(recorder)), hooks_(std::move(hooks)) {}

  /// `key` stands for what a step bakes in besides addresses: the batch size. What changes from step to step,
  /// as the learning rate, is read on the device instead. A new key captures anew; a few of the last used are
  /// kept (the whole batch and the epoch's last, shorter one).
  /// `steps`: how many it is.
  [[nodiscard]] Result<void> run(std::uint64_t key, const Step& step, std::uint64_t steps = 1);

  /// Steps that were replayed rather than called.
  [[nodiscard]] std::uint64_t num_replays() const { return num_replays_; }

 private:
  [[nodiscard]] Result<void> capture(std::size_t slot, const Step& step);

  const std::unique_ptr<StepRecorder> recorder_;
  const StepGraphHooks hooks_;
  StepGraphPlan plan_;
  std::uint64_t num_replays_ = 0, unmarked_ = 0, marks_ = 0;
};

}  // namespace muster
