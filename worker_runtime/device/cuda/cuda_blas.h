// SPDX-License-Identifier: Apache-2.0
// CudaBlas: the functions of cuBLASLt that muster calls, found while the program runs, and one handle. Owned
// by the kernels of one rank; not thread-safe. Failure to load says what to install; muster's own kernels
// then do the work. Source: cublasLt.h of the CUDA 13 toolkit.
#pragma once

#include <memory>
#include <string>

#include <cublasLt.h>

#include <muster/result.h>

namespace muster::cuda {

class CudaBlas {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaBlas>> open();
  CudaBlas& operator=(CudaBlas&&) = delete;  // nor copied
  ~CudaBlas();

  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtGetVersion) get_version = nullptr;
  decltype(&::cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&::cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

  [[nodiscard]] cublasLtHandle_t handle() const { return handle_; }
  /// "13.1.0".
  [[nodiscard]] std::string version() const;
  /// Success, or kFailed with the call and cuBLAS' words.
  [[nodiscard]] Result<void> check(cublasStatus_t status, std::string_view call) const;

 private:
  CudaBlas() = default;
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace muster::cuda
