// SPDX-License-Identifier: Apache-2.0
// StepGraph: runs a training step, on a GPU as one CUDA graph launch. A step of the seed benchmark is a dozen
// kernels of a few microseconds each; launched one by one, the launches are the step. On the CPU it just
// calls the function. Owned by the training loop, one per stream, used by its thread only. Includes no CUDA
// header. The first step of a key runs eagerly (libraries load, NCCL connects), the second is captured, the
// following replay the capture: the function is then NOT called. It must only enqueue work on the stream
// (kernels, a ProcessGroup on the same stream), always the same work on the same addresses for one key, and
// read nothing back. Every rank of a group must run the same keys in the same order: captured or not is a
// property of a collective. Failure: what the step returned, or kFailed naming the CUDA call; after a failed
// capture nothing more may be run.
// Destroyed before the ProcessGroup whose collectives it captured (whose end would wait for it) and before
// the Kernels whose stream it uses.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

#include <muster/dtype.h>
#include <muster/result.h>

namespace muster {

class StepGraph {
 public:
  using Step = std::function<Result<void>()>;

  virtual ~StepGraph() = default;
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// `key` stands for everything a step bakes in besides addresses: batch size, learning rate, first step or
  /// not. A new key captures anew; a few of the last used are kept (the whole batch and the epoch's last,
  /// shorter one).
  [[nodiscard]] virtual Result<void> run(std::uint64_t key, const Step& step) = 0;

  /// Steps that were replayed rather than called.
  [[nodiscard]] virtual std::uint64_t num_replays() const = 0;

 protected:
  StepGraph() = default;
};

/// `stream`: Kernels::stream(). With `capture` false, or on the CPU, every step is called.
[[nodiscard]] std::unique_ptr<StepGraph> make_step_graph(Device device, void* stream, bool capture = true);

/// The same on a GPU, in builds with CUDA; calls every step in builds without.
[[nodiscard]] std::unique_ptr<StepGraph> make_cuda_step_graph(void* stream);

/// Calls every step.
[[nodiscard]] std::unique_ptr<StepGraph> make_eager_steps();

/// Mixes what a key is made of, for example step_key({batch, bits of the learning rate, first_step}).
[[nodiscard]] std::uint64_t step_key(std::initializer_list<std::uint64_t> parts);

}  // namespace muster
