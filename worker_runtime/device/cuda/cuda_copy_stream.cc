// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/device/cuda/cuda_error.h"

namespace muster::cuda {
namespace {

/// A stream, and events for each slot.
class CudaCopyStream final : public CopyStream {
 public:
  CudaCopyStream(int device, cudaStream_t main) : device_(device), main_(main) {}
  ~CudaCopyStream() override {
    (void)cudaSetDevice(device_);
    if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
    for (const auto& events : {copied_, released_})
      for (cudaEvent_t event : events)
        if (event != nullptr) (void)cudaEventDestroy(event);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  Result<void> start() {
    MUSTER_OK(select(device_));
    MUSTER_OK(called(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (auto* const events : {&copied_, &released_})
      for (cudaEvent_t& event : *events)
        MUSTER_OK(called(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
                         "cudaEventCreate"));
    return {};
  }

  Result<void> copy(std::size_t slot, void* device, const void* host, std::size_t size_bytes) override {
    MUSTER_OK(select(device_));
    MUSTER_OK(called(cudaStreamWaitEvent(stream_, released_[slot], 0), "cudaStreamWaitEvent"));
    MUSTER_OK(called(cudaMemcpyAsync(device, host, size_bytes, cudaMemcpyHostToDevice, stream_),
                     "copy of a batch to the GPU"));
    MUSTER_OK(called(cudaEventRecord(copied_[slot], stream_), "cudaEventRecord"));
    return called(cudaStreamWaitEvent(main_, copied_[slot], 0), "cudaStreamWaitEvent");
  }
  Result<void> release(std::size_t slot) override {
    return called(cudaEventRecord(released_[slot], main_), "cudaEventRecord");
  }
  Result<void> wait(std::size_t slot) override {
    return called(cudaEventSynchronize(copied_[slot]), "cudaEventSynchronize");
  }

 private:
  Result<void> called(cudaError_t result, std::string_view call) const {
    return check(result, call, device_);
  }

  int device_;
  cudaStream_t main_, stream_ = nullptr;
  std::array<cudaEvent_t, kSlots> copied_{}, released_{};
};

}  // namespace

Result<std::unique_ptr<CopyStream>> CudaDevice::make_copy_stream() {
  auto made = std::make_unique<CudaCopyStream>(index_, stream_);
  MUSTER_OK(made->start());
  return made;
}

}  // namespace muster::cuda
