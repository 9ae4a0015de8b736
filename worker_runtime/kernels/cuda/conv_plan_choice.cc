// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cuda/conv_plan_choice.h"

#include <vector>

#include "worker_runtime/kernels/cuda/conv_plan.h"

namespace muster::kernels::cuda {
namespace {

class DnnConvPlans final : public ConvPlans {
 public:
  explicit DnnConvPlans(cudaStream_t stream) : stream_(stream) {}

  Result<std::size_t> plan(const ConvShape& shape) override {
    if (is_small(shape)) return std::size_t{0};
    if (Entry* known = find(shape); known != nullptr) return known->plan ? known->plan->workspace_bytes() : 0;
    if (!tried_) {
      tried_ = true;
      if (auto opened = muster::cuda::CudaDnn::open(stream_)) dnn_ = *std::move(opened);
    }
    entries_.push_back({shape, nullptr});
    if (dnn_ == nullptr) return std::size_t{0};
    // A shape for which cuDNN has no exact engine is no error either: ours computes every shape.
    if (auto made = ConvPlan::make(*dnn_, shape))
      entries_.back().plan = std::make_unique<ConvPlan>(*std::move(made));
    return entries_.back().plan ? entries_.back().plan->workspace_bytes() : std::size_t{0};
  }

  bool has(const ConvShape& shape) override {
    const Entry* known = find(shape);
    return known != nullptr && known->plan != nullptr;
  }

  Result<void> forward(const ConvShape& shape, const float* x, const float* w, float* y,
                       void* workspace) override {
    return find(shape)->plan->run(ConvPlan::Pass::kForward, x, w, y, workspace);
  }

  Result<void> backward(const ConvShape& shape, const float* x, const float* w, const float* dy, float* dx,
                        float* dw, void* workspace) override {
    ConvPlan& plan = *find(shape)->plan;
    MUSTER_OK(plan.run(ConvPlan::Pass::kBackwardFilter, x, dw, dy, workspace));
    if (dx == nullptr) return {};
    return plan.run(ConvPlan::Pass::kBackwardData, dx, w, dy, workspace);
  }

 private:
  struct Entry {
    ConvShape shape;
    std::unique_ptr<ConvPlan> plan;  // nullptr: muster's own kernels
  };

  // A network has tens of shapes: a walk is cheaper than hashing them.
  Entry* find(const ConvShape& shape) {
    for (Entry& entry : entries_)
      if (entry.shape == shape) return &entry;
    return nullptr;
  }

  cudaStream_t stream_;
  bool tried_ = false;
  std::unique_ptr<muster::cuda::CudaDnn> dnn_;  // before entries_: plans use it when they are destroyed
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<ConvPlans> make_conv_plans(cudaStream_t stream) {
  return std::make_unique<DnnConvPlans>(stream);
}

}  // namespace muster::kernels::cuda
