// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cuda/conv_plan_choice.h"

#include <vector>

#include "worker_runtime/kernels/cuda/conv_plan.h"

namespace muster::kernels::cuda {
namespace {

class DnnConvPlans final : public ConvPlans {
 public:
  explicit DnnConvPlans(std::unique_ptr<muster::cuda::CudaDnn> dnn) : dnn_(std::move(dnn)) {}

  std::size_t plan(const ConvShape& shape) override {
    Entry* entry = find(shape);
    if (entry == nullptr) {
      entry = &entries_.emplace_back(Entry{shape, nullptr});
      // A shape for which cuDNN has no exact engine is no error: ours computes every shape.
      if (auto made = ConvPlan::make(*dnn_, shape))
        entry->plan = std::make_unique<ConvPlan>(*std::move(made));
    }
    return entry->plan ? entry->plan->workspace_bytes() : 0;
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

  std::unique_ptr<muster::cuda::CudaDnn> dnn_;  // before entries_: plans use it when they are destroyed
  std::vector<Entry> entries_;
};

}  // namespace

Result<std::unique_ptr<ConvPlans>> open_conv_plans(cudaStream_t stream) {
  MUSTER_TRY(auto dnn, muster::cuda::CudaDnn::open(stream));
  return std::make_unique<DnnConvPlans>(std::move(dnn));
}

}  // namespace muster::kernels::cuda
