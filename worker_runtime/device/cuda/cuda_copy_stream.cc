// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <cuda_runtime_api.h>

#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/device/cuda/cuda_error.h"

namespace muster {
namespace {

class CudaCopyStream final : public CopyStream {
 public:
  CudaCopyStream(int device, cudaStream_t main) : device_(device), main_(main) {}
  ~CudaCopyStream() override {
    if (!cuda::select(device_)) return;
    if (copies_ != nullptr) {
      (void)cudaStreamSynchronize(copies_);
      (void)cudaStreamDestroy(copies_);
    }
    for (const auto& events : {copied_, released_})
      for (cudaEvent_t event : events)
        if (event != nullptr) (void)cudaEventDestroy(event);
  }

  Result<void> copy(std::size_t slot, std::span<const Copy> copies) override {
    MUSTER_OK(start());
    MUSTER_OK(check(cudaStreamWaitEvent(copies_, released_[slot], 0), "cudaStreamWaitEvent"));
    for (const Copy& one : copies)
      MUSTER_OK(check(cudaMemcpyAsync(one.device, one.host, one.size_bytes, cudaMemcpyHostToDevice, copies_),
                      "copy of a batch to the GPU"));
    MUSTER_OK(check(cudaEventRecord(copied_[slot], copies_), "cudaEventRecord"));
    return check(cudaStreamWaitEvent(main_, copied_[slot], 0), "cudaStreamWaitEvent");
  }

  Result<void> release(std::size_t slot) override {
    return check(cudaEventRecord(released_[slot], main_), "cudaEventRecord");
  }

  Result<void> wait(std::size_t slot) override {
    if (copies_ == nullptr) return {};
    return check(cudaEventSynchronize(copied_[slot]), "cudaEventSynchronize");
  }

 private:
  Result<void> start() {
    MUSTER_OK(cuda::select(device_));
    if (copies_ != nullptr) return {};
    MUSTER_OK(check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (auto* const events : {&copied_, &released_})
      for (cudaEvent_t& event : *events)
        MUSTER_OK(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                        "cudaEventCreate"));
    return {};
  }
  Result<void> check(cudaError_t result, std::string_view call) const {
    return cuda::check(result, call, device_);
  }

  int device_;
  cudaStream_t main_, copies_ = nullptr;
  std::array<cudaEvent_t, kSlots> copied_{}, released_{};
};

}  // namespace

std::unique_ptr<CopyStream> cuda::make_cuda_copy_stream(int device, cudaStream_t main) {
  return std::make_unique<CudaCopyStream>(device, main);
}

}  // namespace muster
