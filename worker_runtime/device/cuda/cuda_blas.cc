// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cuda/cuda_blas.h"

#include "rendezvous/base/fail.h"
#include "worker_runtime/core/shared_library.h"

namespace muster::cuda {

Result<std::unique_ptr<CudaBlas>> CudaBlas::open() {
  const std::string major = std::to_string(CUBLAS_VER_MAJOR);
  MUSTER_TRY(
      const SharedLibrary library,
      SharedLibrary::open({"cuBLASLt " + major, cuda_candidates("libcublasLt.so." + major),
                           "install libcublas-" + major + "-0 or put its folder into LD_LIBRARY_PATH"}));
  std::unique_ptr<CudaBlas> blas(new CudaBlas);
  MUSTER_OK(library.load(
      blas->create, "cublasLtCreate", blas->destroy, "cublasLtDestroy", blas->get_version,
      "cublasLtGetVersion", blas->get_status_string, "cublasLtGetStatusString", blas->matmul,
      "cublasLtMatmul", blas->get_heuristic, "cublasLtMatmulAlgoGetHeuristic", blas->desc_create,
      "cublasLtMatmulDescCreate", blas->desc_destroy, "cublasLtMatmulDescDestroy", blas->desc_set,
      "cublasLtMatmulDescSetAttribute", blas->layout_create, "cublasLtMatrixLayoutCreate",
      blas->layout_destroy, "cublasLtMatrixLayoutDestroy", blas->preference_create,
      "cublasLtMatmulPreferenceCreate", blas->preference_destroy, "cublasLtMatmulPreferenceDestroy",
      blas->preference_set, "cublasLtMatmulPreferenceSetAttribute"));
  MUSTER_OK(blas->check(blas->create(&blas->handle_), "cublasLtCreate"));
  return blas;
}

CudaBlas::~CudaBlas() {
  if (handle_ != nullptr) destroy(handle_);
}

std::string CudaBlas::version() const {
  return version_text(get_version());
}

Result<void> CudaBlas::check(cublasStatus_t status, std::string_view call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return fail(ErrorCode::kFailed, "{}: {}", call, get_status_string(status));
}

}  // namespace muster::cuda
