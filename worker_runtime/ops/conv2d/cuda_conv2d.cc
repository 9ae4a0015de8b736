// SPDX-License-Identifier: Apache-2.0
// On a GPU: shapes of few channels by muster's own kernels, since the step of a small network is bound by
// launches and a library's convolution takes several; the others by cuDNN where it is there.
#include "worker_runtime/ops/conv2d/cuda_conv2d.h"

#include "worker_runtime/device/cuda/cuda_device.h"

namespace muster::nn::cuda {
namespace {

bool uses_dnn(Device& device, const ConvShape& s) {
  const bool is_small = s.in_channels <= 16 && s.out_channels <= 32 && s.kernel <= 7;
  return !is_small && static_cast<muster::cuda::CudaDevice&>(device).dnn() != nullptr;
}

}  // namespace

TensorFormat conv2d_format(Device& device, const ConvShape& shape, const TensorFormat& offered) {
  if (!uses_dnn(device, shape)) return offered;
  return {offered.dtype, offered.dtype == DType::kFloat32 ? Layout::kNCHW : Layout::kNHWC};
}

std::unique_ptr<PreparedConv2d> prepare_conv2d(Device& device, const ConvShape& shape) {
#ifdef MUSTER_HAS_CUDNN
  // A shape for which cuDNN has no engine that is allowed is no error: ours computes every shape.
  if (uses_dnn(device, shape))
    if (auto made = make_dnn_conv(device, shape)) return made;
#endif
  return std::make_unique<OwnConv>(device, shape);
}

}  // namespace muster::nn::cuda
