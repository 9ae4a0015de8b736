// SPDX-License-Identifier: Apache-2.0
// ConvPlans: cuDNN's plans of convolution shapes, where its headers are. Owned by CudaKernels.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels::cuda {

/// True for shapes that muster's own direct kernels take: few channels, little work. A step of the seed
/// benchmark's network is bound by launches, and a library's convolution takes several.
[[nodiscard]] inline bool is_small(const ConvShape& s) {
  return s.in_channels <= 16 && s.out_channels <= 32 && s.kernel <= 7;
}

/// True for shapes that muster's own linear kernels take.
[[nodiscard]] inline bool is_small(const LinearShape& s) {
  return s.batch <= 64;
}

/// What plans promise cuDNN of every pointer, so that it may choose engines that load four floats at once.
/// Arenas and activations of muster's models keep it, as they are cut from allocations (256 bytes) at
/// multiples of 64 bytes. A pointer of a caller of Kernels may lie anywhere.
inline constexpr std::size_t kConvAlignment = 16;
[[nodiscard]] inline bool is_conv_aligned(const void* tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor) % kConvAlignment == 0;
}

class ConvPlans {
 public:
  virtual ~ConvPlans() = default;

  /// Plans a shape on first sight; returns the scratch it needs.
  [[nodiscard]] virtual std::size_t plan(const ConvShape& shape) = 0;
  /// True if `shape` was planned and cuDNN has an exact engine for it.
  [[nodiscard]] virtual bool has(const ConvShape& shape) = 0;
  [[nodiscard]] virtual Result<void> forward(const ConvShape& shape, const float* x, const float* w, float* y,
                                             void* workspace) = 0;
  /// dx may be nullptr.
  [[nodiscard]] virtual Result<void> backward(const ConvShape& shape, const float* x, const float* w,
                                              const float* dy, float* dx, float* dw, void* workspace) = 0;
};

/// An error says what is missing: cuDNN here, or its headers where muster was built.
[[nodiscard]] Result<std::unique_ptr<ConvPlans>> open_conv_plans(cudaStream_t stream);

}  // namespace muster::kernels::cuda
