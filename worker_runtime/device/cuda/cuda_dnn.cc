// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cuda/cuda_dnn.h"

#include "worker_runtime/core/shared_library.h"

namespace muster::cuda {

Result<std::unique_ptr<CudaDnn>> CudaDnn::open(cudaStream_t stream) {
  const std::string major = std::to_string(CUDNN_MAJOR);
  MUSTER_TRY(const SharedLibrary library,
             SharedLibrary::open({"cuDNN " + major, cuda_candidates("libcudnn.so." + major),
                                  "install cudnn" + major + "-cuda or put its folder into LD_LIBRARY_PATH"}));
  std::unique_ptr<CudaDnn> dnn(new CudaDnn);
  MUSTER_OK(library.load(dnn->create, "cudnnCreate", dnn->destroy, "cudnnDestroy", dnn->set_stream,
                         "cudnnSetStream", dnn->get_version, "cudnnGetVersion", dnn->get_error_string,
                         "cudnnGetErrorString"));
  library.load_optional(dnn->get_last_error_string, "cudnnGetLastErrorString");
  MUSTER_OK(library.load(dnn->create_descriptor, "cudnnBackendCreateDescriptor", dnn->destroy_descriptor,
                         "cudnnBackendDestroyDescriptor", dnn->set_attribute, "cudnnBackendSetAttribute",
                         dnn->get_attribute, "cudnnBackendGetAttribute", dnn->finalize,
                         "cudnnBackendFinalize", dnn->execute, "cudnnBackendExecute"));
  MUSTER_OK(dnn->check(dnn->create(&dnn->handle_), "cudnnCreate"));
  MUSTER_OK(dnn->check(dnn->set_stream(dnn->handle_, stream), "cudnnSetStream"));
  return dnn;
}

CudaDnn::~CudaDnn() {
  if (handle_ != nullptr) destroy(handle_);
}

std::string CudaDnn::version() const {
  return version_text(get_version());
}

Result<void> CudaDnn::check(cudnnStatus_t status, std::string_view call) const {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  std::string message = std::string(call) + ": " + get_error_string(status);
  if (get_last_error_string != nullptr) {
    char detail[512] = "";
    get_last_error_string(detail, sizeof detail);
    if (detail[0] != '\0') message += std::string(": ") + detail;
  }
  // The statuses of cuDNN 9 are grouped by thousands; 3xxx is "not supported".
  return fail(status / 1000 == 3 ? ErrorCode::kUnsupported : ErrorCode::kFailed, std::move(message));
}

Result<DnnDescriptor> DnnDescriptor::make(const CudaDnn& dnn, cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw = nullptr;
  MUSTER_OK(dnn.check(dnn.create_descriptor(type, &raw), "cudnnBackendCreateDescriptor"));
  DnnDescriptor descriptor;
  descriptor.dnn_ = &dnn;
  descriptor.raw_ = {raw, dnn.destroy_descriptor};
  return descriptor;
}

Result<void> DnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::int64_t count, const void* values) {
  return dnn_->check(dnn_->set_attribute(get(), name, type, count, values),
                     "cudnnBackendSetAttribute " + std::to_string(static_cast<int>(name)));
}

Result<void> DnnDescriptor::set(cudnnBackendAttributeName_t name, const DnnDescriptor& descriptor) {
  const cudnnBackendDescriptor_t raw = descriptor.get();
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

Result<void> DnnDescriptor::finalize() {
  return dnn_->check(dnn_->finalize(get()), "cudnnBackendFinalize");
}

}  // namespace muster::cuda
