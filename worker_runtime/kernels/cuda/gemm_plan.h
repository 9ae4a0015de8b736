// SPDX-License-Identifier: Apache-2.0
// GemmPlan: one cuBLASLt product of fixed shape with its epilogue and chosen algorithms; LinearPlan: the
// three products of a linear layer. Full float32 (no TF32). Built once per shape before the first step; run()
// only enqueues, so it can be captured. Owned by CudaKernels, not thread-safe. Failure: the library's words,
// or kUnsupported where cuBLASLt has no algorithm for a shape; the caller then keeps muster's own kernel.
#pragma once

#include <cstdint>
#include <optional>

#include "worker_runtime/core/cuda_blas.h"
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels::cuda {

/// Bytes of scratch a product may use: what cuBLAS itself takes on Hopper.
inline constexpr std::size_t kGemmWorkspace = std::size_t{32} << 20;

/// D (rows x columns) = op(A) op(B), column-major as cuBLAS sees memory.
struct GemmShape {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  std::int64_t rows = 0, columns = 0, inner = 0;
  std::int64_t lda = 0, ldb = 0, ldd = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};

class GemmPlan {
 public:
  [[nodiscard]] static Result<GemmPlan> make(const muster::cuda::CudaBlas& blas, const GemmShape& shape);
  GemmPlan(GemmPlan&& other) noexcept;
  GemmPlan& operator=(GemmPlan&&) = delete;
  ~GemmPlan();

  /// `bias` is read or written as the epilogue says; ignored without one.
  [[nodiscard]] Result<void> run(const float* a, const float* b, float* d, const float* bias, void* workspace,
                                 cudaStream_t stream);

 private:
  explicit GemmPlan(const muster::cuda::CudaBlas& blas) : blas_(&blas) {}
  [[nodiscard]] Result<void> choose(const GemmShape& shape, std::uint32_t alignment_bytes,
                                    cublasLtMatmulAlgo_t& algo);

  const muster::cuda::CudaBlas* blas_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  bool has_bias_ = false;
  cublasLtMatmulAlgo_t aligned_{};  // every pointer a multiple of 16 bytes
  cublasLtMatmulAlgo_t
      unaligned_{};  // of 4: a parameter's place in the arena follows from the ones before it
};

class LinearPlan {
 public:
  [[nodiscard]] static Result<LinearPlan> make(const muster::cuda::CudaBlas& blas, const LinearShape& shape);

  [[nodiscard]] Result<void> forward(const float* x, const float* w, const float* b, float* y, bool relu,
                                     void* workspace, cudaStream_t stream);
  /// dy is already masked. dx may be nullptr. db is written only where computes_bias_gradient().
  [[nodiscard]] Result<void> backward(const float* x, const float* w, const float* dy, float* dx, float* dw,
                                      float* db, void* workspace, cudaStream_t stream);
  /// False where cuBLASLt has no algorithm that sums the bias' gradient along: a kernel of ours does then.
  [[nodiscard]] bool computes_bias_gradient() const { return computes_bias_gradient_; }

 private:
  LinearPlan(GemmPlan plain, GemmPlan relu, GemmPlan data, GemmPlan weights, bool computes_bias_gradient)
      : forward_(std::move(plain)),
        forward_relu_(std::move(relu)),
        data_(std::move(data)),
        weights_(std::move(weights)),
        computes_bias_gradient_(computes_bias_gradient) {}

  GemmPlan forward_, forward_relu_, data_, weights_;
  bool computes_bias_gradient_;
};

/// The products of a linear layer, for make() and for tests that multiply them out by hand.
/// A row-major (r, c) matrix is to cuBLAS a column-major (c, r) one.
struct LinearProducts {
  GemmShape forward;  // y^T (N x M) = w (N x K) x^T (K x M): A = w, B = x, D = y
  GemmShape data;     // dx^T (K x M) = w^T (K x N) dy^T (N x M): A = w, B = dy, D = dx
  GemmShape
      weights;  // dw^T (K x N) = x^T (K x M) dy (M x N): A = x, B = dy, D = dw; db = columns of B summed
};
[[nodiscard]] LinearProducts products_of(const LinearShape& shape);

}  // namespace muster::kernels::cuda
