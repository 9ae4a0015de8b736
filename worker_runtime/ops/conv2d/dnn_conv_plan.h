// SPDX-License-Identifier: Apache-2.0
// ConvPlan: the three passes of one convolution shape as execution plans of cuDNN 9's graph interface:
// operation graph, heuristic mode A (then its fallback list), the first engine that is allowed and builds, or
// the fastest of the first ones. All tensors in ConvShape's format, sums in float32; engines that use
// Winograd or FFT are passed over. Built once per shape before the first step; run() only enqueues. Not
// thread-safe. Failure: cuDNN's words; the caller then keeps muster's own kernels. Source: cudnn_graph.h of
// cuDNN 9.19; PyTorch's filterEngineConfigs (Conv_v8.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/device/cuda/cuda_dnn.h"
#include "worker_runtime/device/plan_cache.h"
#include "worker_runtime/ops/conv2d/conv2d.h"

namespace muster::nn::cuda {

/// What plans promise cuDNN of every pointer, so that it may choose engines that load four floats at once.
/// Arenas and activations of muster's models keep it, as they are cut from allocations (256 bytes) at
/// multiples of 64 bytes.
inline constexpr std::size_t kConvAlignment = 16;
[[nodiscard]] inline bool is_conv_aligned(const void* tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor) % kConvAlignment == 0;
}

struct ConvPlanOptions {
  bool deterministic = true, tf32 = false;  ///< ComputeOptions'
  /// ComputeOptions::benchmark: where choices are kept; nullptr: the first plan is taken.
  PlanCache* timed = nullptr;
  std::string_view device = {};  ///< its name
  void* stream = nullptr;        ///< what is timed runs here
};

class ConvPlan {
 public:
  enum class Pass { kForward, kBackwardData, kBackwardFilter };

  [[nodiscard]] static Result<ConvPlan> make(const muster::cuda::CudaDnn& dnn, const ConvShape& shape,
                                             const ConvPlanOptions& options = {});

  /// Scratch that run() needs, the largest of the three passes.
  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_bytes_; }

  /// x, w and y stand for whichever of them and their gradients the pass reads and writes:
  /// forward x, w -> y; backward-data dy (as y), w -> dx (as x); backward-filter x, dy (as y) -> dw (as w).
  /// kInvalidArgument names the one that is not is_conv_aligned().
  /// In NHWC w is (out_channels, kernel, kernel, in_channels / groups).
  [[nodiscard]] Result<void> run(Pass pass, const void* x, const void* w, const void* y, void* workspace);

 private:
  explicit ConvPlan(const muster::cuda::CudaDnn& dnn) : dnn_(&dnn) {}

  const muster::cuda::CudaDnn* dnn_;
  // Whether a finalized plan still refers to what it was made of is not documented: all of it lives as long.
  std::vector<muster::cuda::DnnDescriptor> parts_;
  std::array<muster::cuda::DnnDescriptor, 3> plans_;
  std::size_t workspace_bytes_ = 0;
};

}  // namespace muster::nn::cuda
