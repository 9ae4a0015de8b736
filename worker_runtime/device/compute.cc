// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include <muster/compute.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/tracer.h"
#ifdef MUSTER_HAS_CUDA
#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/device/cuda/cuda_error.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif
#endif

namespace muster {

void Device::set_total_memory(std::size_t size_bytes) {
  if (options_.memory_fraction < 1)
    cap_bytes_ = static_cast<std::size_t>(options_.memory_fraction * static_cast<double>(size_bytes));
}

Result<void> Device::claim(std::size_t size_bytes) {
  if (!cap_bytes_ || size_bytes <= *cap_bytes_ - claimed_bytes_) {
    claimed_bytes_ += size_bytes;
    return {};
  }
  return fail(
      ErrorCode::kExhausted,
      "allocate {} bytes on {}: {} of the {} bytes that a memory fraction of {} allows are in use; use "
      "a smaller batch or model, or a larger fraction",
      size_bytes, name(), claimed_bytes_, *cap_bytes_, options_.memory_fraction);
}

Result<std::shared_ptr<void>> Device::allocate_host(std::size_t size_bytes) {
  const std::shared_ptr<void> memory(std::malloc(size_bytes), &std::free);
  if (memory == nullptr)
    return fail(ErrorCode::kExhausted, "allocate {} bytes of CPU memory: none left", size_bytes);
  std::memset(memory.get(), 0, size_bytes);  // given now, not page by page later
  return memory;
}

void TraceRange::start(std::string_view name, std::string_view category) {
  name_ = name;
  category_ = category;
#ifdef NVTX_VERSION
  nvtxRangePushA(std::string(name).c_str());
#endif
  begin_ = std::chrono::steady_clock::now();
  first_ = tracer_->mark();
}

void TraceRange::finish() {
  const auto last = tracer_->mark();
  tracer_->events.push_back(
      {std::string(name_), category_, begin_, std::chrono::steady_clock::now(), false, first_, last});
#ifdef NVTX_VERSION
  nvtxRangePop();
#endif
}

Result<Compute> make_compute(DeviceType type, int index, const ComputeOptions& options) {
  if (!(options.memory_fraction > 0 && options.memory_fraction <= 1))
    return invalid("a memory fraction of {}; it is above 0 and at most 1", options.memory_fraction);
  if (type == DeviceType::kCpu) return make_cpu_device(options);
#ifdef MUSTER_HAS_CUDA
  return cuda::CudaDevice::make(index, options);
#else
  return fail(ErrorCode::kUnsupported,
              "CUDA device " + std::to_string(index) +
                  ": this build has no CUDA kernels; train on the CPU, or build where nvcc is on PATH");
#endif
}

int gpu_count() {
#ifdef MUSTER_HAS_CUDA
  return cuda::device_count().value_or(0);
#else
  return 0;
#endif
}

std::string describe(const Compute& compute) {
  return std::string(compute->name());
}

std::size_t memory_allocated(const Compute& compute) {
  return compute->claimed_bytes();
}

void* stream_of(const Compute& compute) {
  return compute->stream();
}

}  // namespace muster
