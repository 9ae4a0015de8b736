// SPDX-License-Identifier: Apache-2.0
// GemmPlan: one cuBLASLt product of fixed shape with its epilogue and chosen algorithms. Sums are float32;
// float32 inputs are rounded to TF32 where that is asked for. Built once per shape before the first step;
// run() only enqueues, so it can be captured. Not thread-safe. Failure: the library's words, or kUnsupported
// where cuBLASLt has no algorithm for a shape; the caller then keeps muster's own kernel.
#pragma once

#include <cstdint>
#include <optional>

#include "worker_runtime/device/cuda/cuda_blas.h"
#include "worker_runtime/ops/linear/linear.h"

namespace muster::nn::cuda {

/// Bytes of scratch a product may use: what cuBLAS itself takes on Hopper.
inline constexpr std::size_t kGemmWorkspace = std::size_t{32} << 20;

/// D (rows x columns) = op(A) op(B), column-major as cuBLAS sees memory.
struct GemmShape {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  std::int64_t rows = 0, columns = 0, inner = 0;
  std::int64_t lda = 0, ldb = 0, ldd = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  DType from = DType::kFloat32, to = DType::kFloat32;  // of A and B; of D and the bias
};

class GemmPlan {
 public:
  [[nodiscard]] static Result<GemmPlan> make(const muster::cuda::CudaBlas& blas, const GemmShape& shape,
                                             bool tf32 = false);
  GemmPlan(GemmPlan&& other) noexcept;
  GemmPlan& operator=(GemmPlan&&) = delete;
  ~GemmPlan();

  /// `bias` is read or written as the epilogue says; ignored without one.
  [[nodiscard]] Result<void> run(const void* a, const void* b, void* d, const void* bias, void* workspace,
                                 cudaStream_t stream);

 private:
  explicit GemmPlan(const muster::cuda::CudaBlas& blas) : blas_(&blas) {}
  [[nodiscard]] Result<void> choose(const GemmShape& shape, std::size_t alignment,
                                    cublasLtMatmulAlgo_t& algo);

  const muster::cuda::CudaBlas* blas_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  bool has_bias_ = false;
  cublasLtMatmulAlgo_t aligned_{};  // every pointer a multiple of 16 bytes
  cublasLtMatmulAlgo_t
      unaligned_{};  // of an element: a parameter's place in the arena follows from the ones before it
};

}  // namespace muster::nn::cuda
