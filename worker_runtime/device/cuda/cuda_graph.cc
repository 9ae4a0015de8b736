// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include <cuda_runtime_api.h>

#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/device/cuda/cuda_error.h"
#include "worker_runtime/device/step_graph_plan.h"

namespace muster {
namespace {

class CudaStepRecorder final : public StepRecorder {
 public:
  CudaStepRecorder(int device, cudaStream_t stream, Result<void>& noted)
      : device_(device), stream_(stream), noted_(noted) {}
  ~CudaStepRecorder() override {
    for (std::size_t slot = 0; slot < graphs_.size(); ++slot) drop(slot);
    for (cudaEvent_t mark : marks_)
      if (mark != nullptr) (void)cudaEventDestroy(mark);
  }

  Result<void> record(std::size_t slot, const Step& step) override {
    if (!noted_) return noted_;  // of an earlier call: not the recording's to forget
    drop(slot);
    MUSTER_OK(cuda::select(device_));
    Result<void> result = capture(slot, step);
    if (!result) {
      drop(slot);
      (void)cudaGetLastError();
    }
    return result;
  }

  Result<void> replay(std::size_t slot) override {
    MUSTER_OK(cuda::select(device_));
    return check(cudaGraphLaunch(graphs_[slot], stream_), "cudaGraphLaunch");
  }

  Result<void> mark(std::size_t which) override {
    MUSTER_OK(cuda::select(device_));
    // The waiting thread sleeps: the communication thread needs the core.
    if (marks_[which] == nullptr)
      MUSTER_OK(
          check(cudaEventCreateWithFlags(&marks_[which], cudaEventDisableTiming | cudaEventBlockingSync),
                "cudaEventCreate"));
    return check(cudaEventRecord(marks_[which], stream_), "cudaEventRecord");
  }

  Result<void> wait(std::size_t which) override {
    return check(cudaEventSynchronize(marks_[which]), "cudaEventSynchronize");
  }

  void drop(std::size_t slot) override {
    // The driver keeps a graph that still runs until it has finished.
    if (graphs_[slot] != nullptr) (void)cudaGraphExecDestroy(graphs_[slot]);
    graphs_[slot] = nullptr;
  }

 private:
  Result<void> capture(std::size_t slot, const Step& step) {
    // Thread-local: what other threads do meanwhile (the comm thread asks for events) neither fails nor
    // disturbs.
    MUSTER_OK(
        check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    Result<void> stepped = step();
    cudaGraph_t graph = nullptr;
    // Always ended, also after an error: a stream left capturing takes no more work.
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    // A kernel that cannot be captured makes the calls after it fail: its error says most.
    Result<void> result = std::exchange(noted_, Result<void>{});
    if (result) result = !stepped ? std::move(stepped) : check(ended, "cudaStreamEndCapture");
    // With the priorities of the streams that were captured: NCCL's is high (nccl_cuda_device.cc).
    if (result)
      result = check(cudaGraphInstantiate(&graphs_[slot], graph, cudaGraphInstantiateFlagUseNodePriority),
                     "cudaGraphInstantiate");
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    MUSTER_OK(std::move(result));
    // The first launch would do this; here it does not delay a step that is timed.
    return check(cudaGraphUpload(graphs_[slot], stream_), "cudaGraphUpload");
  }

  Result<void> check(cudaError_t result, std::string_view call) const {
    return cuda::check(result, call, device_);
  }

  int device_;
  cudaStream_t stream_;
  Result<void>& noted_;
  std::array<cudaGraphExec_t, StepGraphPlan::kSlots> graphs_{};
  std::array<cudaEvent_t, 2> marks_{};
};

}  // namespace

std::unique_ptr<StepRecorder> cuda::make_cuda_step_recorder(int device, cudaStream_t stream,
                                                            Result<void>& noted) {
  return std::make_unique<CudaStepRecorder>(device, stream, noted);
}

}  // namespace muster
