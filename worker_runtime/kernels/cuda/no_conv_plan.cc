// SPDX-License-Identifier: Apache-2.0
// Convolutions of a build whose toolkit has no cuDNN headers: muster's own kernels take every shape.
#include "worker_runtime/kernels/cuda/conv_plan_choice.h"

namespace muster::kernels::cuda {
namespace {

class NoConvPlans final : public ConvPlans {
 public:
  Result<std::size_t> plan(const ConvShape& /*shape*/) override { return std::size_t{0}; }
  bool has(const ConvShape& /*shape*/) override { return false; }
  Result<void> forward(const ConvShape& /*shape*/, const float* /*x*/, const float* /*w*/, float* /*y*/,
                       void* /*workspace*/) override {
    return fail(ErrorCode::kUnsupported, "convolution by cuDNN: this build has no cuDNN");
  }
  Result<void> backward(const ConvShape& /*shape*/, const float* /*x*/, const float* /*w*/,
                        const float* /*dy*/, float* /*dx*/, float* /*dw*/, void* /*workspace*/) override {
    return fail(ErrorCode::kUnsupported, "convolution by cuDNN: this build has no cuDNN");
  }
};

}  // namespace

std::unique_ptr<ConvPlans> make_conv_plans(cudaStream_t /*stream*/) {
  return std::make_unique<NoConvPlans>();
}

}  // namespace muster::kernels::cuda
