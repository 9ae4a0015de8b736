// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <cuda_runtime_api.h>

#include "worker_runtime/core/cuda_error.h"
#include "worker_runtime/core/step_graph.h"
#include "worker_runtime/core/step_graph_plan.h"

namespace muster {
namespace {

class CudaStepGraph final : public StepGraph {
 public:
  explicit CudaStepGraph(cudaStream_t stream) : stream_(stream) {}
  ~CudaStepGraph() override {
    for (std::size_t slot = 0; slot < graphs_.size(); ++slot) drop(slot);
  }

  Result<void> run(std::uint64_t key, const Step& step) override {
    if (broken_) return broken_result();
    const StepGraphPlan::Decision next = plan_.next(key);
    switch (next.action) {
      case StepGraphPlan::Action::kCall:
        drop(next.slot);
        return step();
      case StepGraphPlan::Action::kCapture:
        if (auto captured = capture(next.slot, step); !captured) {
          broken_ = true;
          return fail("capture of the training step", std::move(captured).error());
        }
        break;
      case StepGraphPlan::Action::kReplay:
        ++num_replays_;
        break;
    }
    return check(cudaGraphLaunch(graphs_[next.slot], stream_), "cudaGraphLaunch");
  }

  std::uint64_t num_replays() const override { return num_replays_; }

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
    Result<void> result = !stepped ? std::move(stepped) : check(ended, "cudaStreamEndCapture");
    if (result) result = check(cudaGraphInstantiate(&graphs_[slot], graph, 0), "cudaGraphInstantiate");
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (!result) {
      (void)cudaGetLastError();
      return result;
    }
    // The first launch would do this; here it does not delay a step that is timed.
    return check(cudaGraphUpload(graphs_[slot], stream_), "cudaGraphUpload");
  }

  void drop(std::size_t slot) {
    // The driver keeps a graph that still runs until it has finished.
    if (graphs_[slot] != nullptr) (void)cudaGraphExecDestroy(graphs_[slot]);
    graphs_[slot] = nullptr;
  }

  static Result<void> broken_result() {
    return fail(ErrorCode::kFailed,
                "a step was run after the capture of one had failed; see the first error");
  }

  static Result<void> check(cudaError_t result, std::string_view call) {
    int device = -1;
    if (result != cudaSuccess) (void)cudaGetDevice(&device);
    return cuda::check(result, call, device);
  }

  cudaStream_t stream_;
  StepGraphPlan plan_;
  std::array<cudaGraphExec_t, StepGraphPlan::kSlots> graphs_{};
  std::uint64_t num_replays_ = 0;
  bool broken_ = false;
};

}  // namespace

std::unique_ptr<StepGraph> make_cuda_step_graph(void* stream) {
  return std::make_unique<CudaStepGraph>(static_cast<cudaStream_t>(stream));
}

}  // namespace muster
