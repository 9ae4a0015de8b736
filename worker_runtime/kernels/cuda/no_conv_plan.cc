// SPDX-License-Identifier: Apache-2.0
// A build whose toolkit has no cuDNN headers: muster's own kernels take every shape.
#include "worker_runtime/kernels/cuda/conv_plan_choice.h"

namespace muster::kernels::cuda {

Result<std::unique_ptr<ConvPlans>> open_conv_plans(cudaStream_t /*stream*/) {
  return fail(ErrorCode::kUnsupported, "this was built without cuDNN; build where cudnn_graph.h is found");
}

}  // namespace muster::kernels::cuda
