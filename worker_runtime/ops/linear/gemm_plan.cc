// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/linear/gemm_plan.h"

#include <cstring>
#include <utility>

namespace muster::nn::cuda {

using muster::cuda::CudaBlas;

Result<GemmPlan> GemmPlan::make(const CudaBlas& blas, const GemmShape& shape, bool tf32) {
  GemmPlan plan(blas);
  MUSTER_OK(blas.check(
      blas.desc_create(&plan.desc_, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "cublasLtMatmulDescCreate"));
  const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& value) {
    return blas.check(blas.desc_set(plan.desc_, name, &value, sizeof value),
                      "cublasLtMatmulDescSetAttribute");
  };
  MUSTER_OK(set(CUBLASLT_MATMUL_DESC_TRANSA, shape.op_a));
  MUSTER_OK(set(CUBLASLT_MATMUL_DESC_TRANSB, shape.op_b));
  MUSTER_OK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue));
  plan.has_bias_ = shape.epilogue != CUBLASLT_EPILOGUE_DEFAULT;

  const auto layout = [&](cublasLtMatrixLayout_t* made, DType dtype, cublasOperation_t op, std::int64_t rows,
                          std::int64_t columns, std::int64_t ld) {
    if (op != CUBLAS_OP_N) std::swap(rows, columns);  // a layout describes memory, before op
    const cudaDataType_t type = dtype == DType::kBFloat16  ? CUDA_R_16BF
                                : dtype == DType::kFloat16 ? CUDA_R_16F
                                                           : CUDA_R_32F;
    return blas.check(blas.layout_create(made, type, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), ld),
                      "cublasLtMatrixLayoutCreate");
  };
  MUSTER_OK(layout(&plan.a_, shape.from, shape.op_a, shape.rows, shape.inner, shape.lda));
  MUSTER_OK(layout(&plan.b_, shape.from, shape.op_b, shape.inner, shape.columns, shape.ldb));
  MUSTER_OK(layout(&plan.d_, shape.to, CUBLAS_OP_N, shape.rows, shape.columns, shape.ldd));
  MUSTER_OK(plan.choose(shape, 16, plan.aligned_));
  MUSTER_OK(plan.choose(shape, size_of(shape.from), plan.unaligned_));
  return plan;
}

Result<void> GemmPlan::choose(const GemmShape& shape, std::size_t alignment, cublasLtMatmulAlgo_t& algo) {
  const CudaBlas& blas = *blas_;
  const auto alignment_bytes = static_cast<std::uint32_t>(alignment);
  cublasLtMatmulPreference_t raw = nullptr;
  MUSTER_OK(blas.check(blas.preference_create(&raw), "cublasLtMatmulPreferenceCreate"));
  struct Release {
    const CudaBlas* blas;
    void operator()(cublasLtMatmulPreference_t p) const { blas->preference_destroy(p); }
  };
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Release> preference(raw, Release{&blas});
  const std::size_t workspace = kGemmWorkspace;
  MUSTER_OK(blas.check(
      blas.preference_set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
      "cublasLtMatmulPreferenceSetAttribute"));
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    MUSTER_OK(blas.check(blas.preference_set(raw, name, &alignment_bytes, sizeof alignment_bytes),
                         "cublasLtMatmulPreferenceSetAttribute"));
  if (has_bias_) {
    // The heuristic takes the bias' alignment from its address and does not read it.
    const void* bias = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(alignment_bytes));
    MUSTER_OK(blas.check(blas.desc_set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
                         "cublasLtMatmulDescSetAttribute"));
  }
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      blas.get_heuristic(blas.handle(), desc_, a_, b_, d_, d_, raw, 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0))
    return fail(ErrorCode::kUnsupported, "cuBLASLt has no algorithm for a product of " +
                                             std::to_string(shape.rows) + "x" + std::to_string(shape.inner) +
                                             " and " + std::to_string(shape.inner) + "x" +
                                             std::to_string(shape.columns) + " with epilogue " +
                                             std::to_string(static_cast<int>(shape.epilogue)));
  MUSTER_OK(blas.check(status, "cublasLtMatmulAlgoGetHeuristic"));
  MUSTER_OK(blas.check(result.state, "cublasLtMatmulAlgoGetHeuristic result"));
  algo = result.algo;
  return {};
}

GemmPlan::GemmPlan(GemmPlan&& other) noexcept
    : blas_(other.blas_),
      desc_(std::exchange(other.desc_, nullptr)),
      a_(std::exchange(other.a_, nullptr)),
      b_(std::exchange(other.b_, nullptr)),
      d_(std::exchange(other.d_, nullptr)),
      has_bias_(other.has_bias_),
      aligned_(other.aligned_),
      unaligned_(other.unaligned_) {}

GemmPlan::~GemmPlan() {
  for (const cublasLtMatrixLayout_t layout : {a_, b_, d_})
    if (layout != nullptr) blas_->layout_destroy(layout);
  if (desc_ != nullptr) blas_->desc_destroy(desc_);
}

Result<void> GemmPlan::run(const void* a, const void* b, void* d, const void* bias, void* workspace,
                           cudaStream_t stream) {
  if (has_bias_)
    MUSTER_OK(blas_->check(blas_->desc_set(desc_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
                           "cublasLtMatmulDescSetAttribute"));
  std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                        reinterpret_cast<std::uintptr_t>(d);
  if (has_bias_) bits |= reinterpret_cast<std::uintptr_t>(bias);
  const float one = 1.0F, zero = 0.0F;
  return blas_->check(
      blas_->matmul(blas_->handle(), desc_, &one, a, a_, b, b_, &zero, d, d_, d, d_,
                    bits % 16 == 0 ? &aligned_ : &unaligned_, workspace, kGemmWorkspace, stream),
      "cublasLtMatmul");
}

}  // namespace muster::nn::cuda
