// SPDX-License-Identifier: Apache-2.0
#include <map>

#include <cuda_runtime_api.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/cuda/counter.h"
#include "worker_runtime/device/cuda/cuda_error.h"
#include "worker_runtime/groups/nccl/nccl_device.h"

namespace muster::nccl {
namespace {

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(void* event) {
  return static_cast<cudaEvent_t>(event);
}

class CudaDevice final : public NcclDevice {
 public:
  explicit CudaDevice(int index) : index_(index) {}

  Result<void> select() override { return cuda::select(index_); }

  Result<void*> create_stream() override {
    int least = 0, greatest = 0;
    MUSTER_OK(check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
    cudaStream_t stream = nullptr;
    // High priority: a collective that waits behind compute kernels makes all other ranks wait too.
    MUSTER_OK(
        check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreate"));
    return static_cast<void*>(stream);
  }

  void destroy_stream(void* stream) override { (void)cudaStreamDestroy(stream_of(stream)); }

  Result<void*> create_event() override {
    cudaEvent_t event = nullptr;
    MUSTER_OK(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
    return static_cast<void*>(event);
  }

  void destroy_event(void* event) override { (void)cudaEventDestroy(event_of(event)); }

  Result<void> record(void* event, void* stream) override {
    return check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
  }

  Result<void> make_wait(void* stream, void* event) override {
    return check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
  }

  Result<bool> is_done(void* event) override {
    const cudaError_t result = cudaEventQuery(event_of(event));
    if (result == cudaErrorNotReady) {
      (void)cudaGetLastError();  // the runtime keeps even this one for whoever asks next
      return false;
    }
    MUSTER_OK(check(result, "cudaEventQuery"));
    return true;
  }

  Result<bool> is_capturing(void* stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    MUSTER_OK(check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing"));
    return status != cudaStreamCaptureStatusNone;
  }

  Result<void*> allocate(std::size_t size_bytes) override {
    void* memory = nullptr;
    MUSTER_OK(
        check(cudaMalloc(&memory, size_bytes), "cudaMalloc of " + std::to_string(size_bytes) + " bytes"));
    if (auto zeroed = zero(memory, size_bytes); !zeroed) {
      free(memory);
      return fail(std::move(zeroed).error());
    }
    return memory;
  }

  void free(void* memory) override { (void)cudaFree(memory); }

  Result<void> zero(void* memory, std::size_t size_bytes) override {
    MUSTER_OK(check(cudaMemset(memory, 0, size_bytes), "cudaMemset"));
    // The non-blocking streams do not wait for the stream that cudaMemset uses.
    return check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  Result<void> copy(void* to, const void* from, std::size_t size_bytes, void* stream) override {
    return check(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, stream_of(stream)),
                 "cudaMemcpyAsync");
  }

  Result<void> synchronize(void* stream) override {
    return check(cudaStreamSynchronize(stream_of(stream)), "cudaStreamSynchronize");
  }

  Result<std::uint32_t*> create_counter() override {
    // The first count_up() is often part of a capture.
    MUSTER_OK(check(cuda::load_increment(), "load the kernel that counts collectives"));
    MUSTER_TRY(void* const count, allocate(sizeof(std::uint32_t)));
    void* memory = nullptr;
    if (auto made =
            check(cudaHostAlloc(&memory, sizeof(std::uint32_t), cudaHostAllocMapped | cudaHostAllocPortable),
                  "cudaHostAlloc");
        !made) {
      free(count);
      return fail(std::move(made).error());
    }
    auto* counter = static_cast<std::uint32_t*>(memory);
    *counter = 0;
    counts_[counter] = static_cast<std::uint32_t*>(count);
    return counter;
  }

  void destroy_counter(std::uint32_t* counter) override {
    free(counts_.at(counter));
    (void)cudaFreeHost(counter);
  }

  Result<void> count_up(std::uint32_t* counter, void* stream) override {
    (void)cudaGetLastError();  // what NCCL may have left behind on this thread is not the launch's error
    // Unified addressing: the pinned word has the same address on the GPU.
    return check(cuda::launch_increment(counts_.at(counter), counter, stream_of(stream)),
                 "count a collective");
  }

 private:
  Result<void> check(cudaError_t result, std::string_view call) const {
    return cuda::check(result, call, index_);
  }

  int index_;
  std::map<const std::uint32_t*, std::uint32_t*> counts_;  // in the GPU's memory, by the host's word
};

}  // namespace

Result<std::unique_ptr<NcclDevice>> make_cuda_device(int index) {
  MUSTER_TRY(const int count, cuda::device_count());
  if (index < 0 || index >= count)
    return fail(ErrorCode::kNotFound,
                "NCCL on GPU {}: there are {} GPUs here; check LOCAL_RANK and CUDA_VISIBLE_DEVICES", index,
                count);
  MUSTER_OK(cuda::select(index));
  return std::make_unique<CudaDevice>(index);
}

}  // namespace muster::nccl
