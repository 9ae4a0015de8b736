// SPDX-License-Identifier: Apache-2.0
// The launches of muster's own CUDA kernels: each takes what its body takes, owns the choice of grid,
// enqueues on the given stream and returns the launch's error. Nothing allocates or waits, so every launch
// can be captured in a graph. An empty problem is a success without a launch. Used by CudaKernels;
// implemented by the .cu files beside it.
#pragma once

#include <cuda_runtime_api.h>

#include "worker_runtime/kernels/cuda/conv_body.h"
#include "worker_runtime/kernels/cuda/elementwise_body.h"
#include "worker_runtime/kernels/cuda/linear_body.h"
#include "worker_runtime/kernels/cuda/loss_body.h"
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels::cuda {

[[nodiscard]] cudaError_t launch_gather(const GatherArgs& args, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_relu_mask(const float* y, float* dy, std::int64_t count,
                                           cudaStream_t stream);
[[nodiscard]] cudaError_t launch_add_bias(float* y, const float* b, std::int64_t count, int channels,
                                          int pixels, cudaStream_t stream);

[[nodiscard]] cudaError_t launch_conv_forward(const ConvArgs& args, const float* x, const float* w,
                                              const float* b, float* y, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_conv_backward_data(const ConvArgs& args, const float* w, const float* dy,
                                                    float* dx, cudaStream_t stream);
/// dw and db in one launch; with dw == nullptr only db.
[[nodiscard]] cudaError_t launch_conv_backward_filter(const ConvArgs& args, const float* x, const float* dy,
                                                      float* dw, float* db, cudaStream_t stream);

[[nodiscard]] cudaError_t launch_linear_forward(const LinearArgs& args, const float* x, const float* w,
                                                const float* b, float* y, bool relu, cudaStream_t stream);
[[nodiscard]] cudaError_t launch_linear_backward(const LinearBackwardArgs& args, cudaStream_t stream);

[[nodiscard]] cudaError_t launch_cross_entropy(const LossArgs& args, LossTotals* totals, cudaStream_t stream);

/// Adds 1 to a counter that the host reads too (mapped pinned memory); system-wide ordered after the work
/// before it.
[[nodiscard]] cudaError_t launch_increment(std::uint32_t* counter, cudaStream_t stream);
/// Brings its kernel onto the current GPU, as the first launch would: the driver loads kernels late, and a
/// load may wait for the GPU, which a stream capture does not allow.
[[nodiscard]] cudaError_t load_increment();

/// dim3 of a Grid.
inline dim3 blocks_of(const Grid& grid) {
  return {grid.x, grid.y, 1};
}

}  // namespace muster::kernels::cuda
