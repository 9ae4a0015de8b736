// SPDX-License-Identifier: Apache-2.0
// Emulated CUDA: products of column-major matrices of float32 or half types, summed in float32, with the
// epilogues that muster asks for, in plain loops on the stream. Refuses what does not fit together, and
// pointers that break a promised alignment.
#include <cstring>

#include "tests/support/emulated_cuda/cublasLt.h"
#include "tests/support/host_device.h"
#include "worker_runtime/ops/cast/half.h"

namespace {

muster::DType dtype_of(const cublasLtMatrixLayoutOpaque_t& m) {
  return m.type == CUDA_R_16BF  ? muster::DType::kBFloat16
         : m.type == CUDA_R_16F ? muster::DType::kFloat16
                                : muster::DType::kFloat32;
}
std::int64_t rows_of(const cublasLtMatrixLayoutOpaque_t& m, cublasOperation_t op) {
  return op == CUBLAS_OP_N ? m.rows : m.columns;
}
std::int64_t columns_of(const cublasLtMatrixLayoutOpaque_t& m, cublasOperation_t op) {
  return op == CUBLAS_OP_N ? m.columns : m.rows;
}

struct Product {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, d;

  [[nodiscard]] bool fits() const {
    return columns_of(a, desc.a) == rows_of(b, desc.b) && rows_of(a, desc.a) == d.rows && a.type == b.type &&
           (d.type == a.type || d.type == CUDA_R_32F) && columns_of(b, desc.b) == d.columns &&
           a.ld >= a.rows && b.ld >= b.rows && d.ld >= d.rows;
  }
  void run(const void* x, const void* y, void* out) const {
    const auto at = [](const void* values, const cublasLtMatrixLayoutOpaque_t& m, cublasOperation_t op,
                       std::int64_t row, std::int64_t column) {
      const std::int64_t i = op == CUBLAS_OP_N ? row + column * m.ld : column + row * m.ld;
      return muster::nn::load<1>(values, dtype_of(m), i).v[0];
    };
    const std::int64_t inner = columns_of(a, desc.a);
    for (std::int64_t column = 0; column < d.columns; ++column)
      for (std::int64_t row = 0; row < d.rows; ++row) {
        float sum = 0;
        for (std::int64_t k = 0; k < inner; ++k)
          sum += at(x, a, desc.a, row, k) * at(y, b, desc.b, k, column);
        if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS || desc.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS)
          sum += muster::nn::load<1>(desc.bias, dtype_of(d), row).v[0];
        if (desc.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS && !(sum > 0)) sum = 0;  // of a NaN, too
        muster::nn::store<1>(out, dtype_of(d), row + column * d.ld, {{sum}});
      }
    if (desc.epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
    for (std::int64_t column = 0; column < d.columns; ++column) {
      float sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) sum += at(y, b, desc.b, k, column);
      muster::nn::store<1>(desc.bias, dtype_of(d), column, {{sum}});
    }
  }
};

}  // namespace

#pragma GCC visibility push(default)

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) {
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() {
  return 0;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value";
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t /*compute*/,
                                        cudaDataType_t /*scale*/) {
  *desc = new cublasLtMatmulDescOpaque_t{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void* value, std::size_t size_bytes) {
  void* const slot = name == CUBLASLT_MATMUL_DESC_TRANSA     ? static_cast<void*>(&desc->a)
                     : name == CUBLASLT_MATMUL_DESC_TRANSB   ? static_cast<void*>(&desc->b)
                     : name == CUBLASLT_MATMUL_DESC_EPILOGUE ? static_cast<void*>(&desc->epilogue)
                                                             : static_cast<void*>(&desc->bias);
  if (size_bytes != (slot == &desc->bias ? sizeof desc->bias : sizeof desc->a))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(slot, value, size_bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t ld) {
  *layout = new cublasLtMatrixLayoutOpaque_t{static_cast<std::int64_t>(rows),
                                             static_cast<std::int64_t>(columns), ld, type};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{256};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, std::size_t size_bytes) {
  if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_SUCCESS;
  if (size_bytes != sizeof preference->alignment) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&preference->alignment, value, size_bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int /*asked*/,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  if (!Product{*desc, *a, *b, *d}.fits()) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {{{preference->alignment}}, 0, CUBLAS_STATUS_SUCCESS, 1, {}};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* /*c*/,
                              cublasLtMatrixLayout_t /*c_layout*/, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* /*workspace*/,
                              std::size_t /*workspace_bytes*/, cudaStream_t stream) {
  const Product product{*desc, *a_layout, *b_layout, *d_layout};
  auto bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
              reinterpret_cast<std::uintptr_t>(d);
  if (desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT) bits |= reinterpret_cast<std::uintptr_t>(desc->bias);
  if (!product.fits() || bits % algo->data[0] != 0 || *static_cast<const float*>(alpha) != 1 ||
      *static_cast<const float*>(beta) != 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  reinterpret_cast<muster::testing::HostStream*>(stream)->enqueue([=] { product.run(a, b, d); });
  return CUBLAS_STATUS_SUCCESS;
}

#pragma GCC visibility pop
