// SPDX-License-Identifier: Apache-2.0
// A linear layer of one shape on one device. All tensors are contiguous and row-major. On a GPU those that
// are void* may be of a half type, LinearShape's, on the CPU they are float32.
#pragma once

#include <muster/operation.h>

namespace muster::nn {

/// x (batch, in_features), w (out_features, in_features), b (out_features), y (batch, out_features).
struct LinearShape {
  int batch = 0, in_features = 0, out_features = 0;
  DType dtype = DType::kFloat32;
  friend bool operator==(const LinearShape&, const LinearShape&) = default;
};

/// Who computes the shape is chosen when it is made; it allocates no memory of the device then or later.
struct PreparedLinear : Prepared {
  /// kUnsupported: a tensor of more than 2^31 elements.
  [[nodiscard]] static Result<std::unique_ptr<PreparedLinear>> make(Device& device, const LinearShape& shape);

  /// y = x w^T + b, then max(., 0) if `relu`. `workspace`: workspace_bytes.
  virtual void forward(const void* x, const void* w, const void* b, void* y, bool relu, void* workspace) = 0;
  /// dy is the gradient of the layer's output; with `relu` it is zeroed where y <= 0 first (in place: dy is
  /// clobbered). dw, db are overwritten; dx likewise, or not computed when nullptr.
  virtual void backward(const void* x, const void* w, const void* y, void* dy, void* dx, float* dw, float* db,
                        bool relu, void* workspace) = 0;
};

/// The CPU's. With vectors: dot products along the weights' rows forward, register-blocked matrix products
/// backward. Same bits on each run.
[[nodiscard]] std::unique_ptr<PreparedLinear> make_cpu_linear(const LinearShape& shape);

/// The products of backward by oneDNN, which packs its operands: dw, and dx unless it is nullptr. And where
/// they are faster, once the weights outgrow the second level cache: nowhere in a build without oneDNN
/// (MUSTER_GPU_HOST).
[[nodiscard]] bool linear_sgemm_is_faster(const LinearShape& shape);
void linear_sgemm_backward(const LinearShape& shape, const float* x, const float* w, const float* dy,
                           float* dx, float* dw);

namespace cuda {
[[nodiscard]] std::unique_ptr<PreparedLinear> prepare_linear(Device& device, const LinearShape& shape);

// linear.cu: muster's own on a GPU. Up to 64 samples, where a product is a few dot products per weight and a
// library's call costs more than the work: forward a warp per output feature, which reads its weights once
// for some samples; backward one launch for dx, dw and db, which masks by ReLU while it reads. More samples:
// products by tiles (gemm.cuh). Each function enqueues and returns a cudaError_t.
inline constexpr int kSmallBatch = 64;

[[nodiscard]] int linear_forward(const LinearShape& shape, const void* x, const void* w, const void* b,
                                 void* y, bool relu, void* stream);
/// With `relu` and a large batch dy is masked in place.
[[nodiscard]] int linear_backward(const LinearShape& shape, const void* x, const void* w, const void* y,
                                  void* dy, void* dx, float* dw, float* db, bool relu, void* stream);
/// dx = dy, or 0 where y is not positive; a NaN lets the gradient pass, as in PyTorch. dx may be dy. relu.cu
[[nodiscard]] int relu_backward(DType dtype, const void* y, const void* dy, void* dx, std::int64_t count,
                                void* stream);
/// db = the sum of dy over the batch.
[[nodiscard]] int bias_gradient(const LinearShape& shape, const void* dy, float* db, void* stream);
}  // namespace cuda

/// A Linear of the same features followed by ReLU, if `operation` is one without; nullptr otherwise.
[[nodiscard]] std::unique_ptr<Operation> linear_with_relu(const Operation& operation);

}  // namespace muster::nn
