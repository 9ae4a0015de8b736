// SPDX-License-Identifier: Apache-2.0
// muster's own linear layer on a GPU. Up to 64 samples, where a product is a few dot products per weight and
// a library's call costs more than the work: forward a warp per output feature, which reads its weights once
// for kRowTile samples; backward one launch for dx, dw and db, which masks by ReLU while it reads. More
// samples: products by tiles (gemm.cuh). Each function enqueues and returns a cudaError_t. Tensors as
// LinearShape says.
#pragma once

#include "worker_runtime/ops/linear/linear.h"

namespace muster::nn::cuda {

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

}  // namespace muster::nn::cuda
