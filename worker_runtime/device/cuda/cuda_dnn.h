// SPDX-License-Identifier: Apache-2.0
// CudaDnn: the functions of cuDNN 9's graph (backend) interface, found while the program runs, and one handle
// bound to one stream. Owned by the kernels of one rank; not thread-safe. Failure to load says what to
// install; muster's own convolutions then do the work. Source: cudnn_graph.h of cuDNN 9.19.
#pragma once

#include <memory>
#include <string>

#include <cudnn.h>

#include <muster/result.h>

namespace muster::cuda {

class CudaDnn {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaDnn>> open(cudaStream_t stream);
  CudaDnn& operator=(CudaDnn&&) = delete;  // nor copied
  ~CudaDnn();

  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnDestroy) destroy = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnGetVersion) get_version = nullptr;
  decltype(&::cudnnGetErrorString) get_error_string = nullptr;
  decltype(&::cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&::cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;

  [[nodiscard]] cudnnHandle_t handle() const { return handle_; }
  /// "9.19.0".
  [[nodiscard]] std::string version() const;
  /// Success, or kFailed with the call and cuDNN's words; kUnsupported where cuDNN says so.
  [[nodiscard]] Result<void> check(cudnnStatus_t status, std::string_view call) const;

 private:
  CudaDnn() = default;
  cudnnHandle_t handle_ = nullptr;
};

/// Sole owner of a backend descriptor.
class DnnDescriptor {
 public:
  [[nodiscard]] static Result<DnnDescriptor> make(const CudaDnn& dnn, cudnnBackendDescriptorType_t type);
  [[nodiscard]] Result<void> set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                 std::int64_t count, const void* values);
  [[nodiscard]] Result<void> set(cudnnBackendAttributeName_t name, const DnnDescriptor& descriptor);
  [[nodiscard]] Result<void> finalize();
  [[nodiscard]] cudnnBackendDescriptor_t get() const { return raw_.get(); }

 private:
  const CudaDnn* dnn_ = nullptr;
  std::unique_ptr<void, decltype(&::cudnnBackendDestroyDescriptor)> raw_{nullptr, nullptr};
};

}  // namespace muster::cuda
