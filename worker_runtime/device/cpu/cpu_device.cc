// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cpu/cpu_device.h"

#include <cstring>
#include <string>
#include <unistd.h>

#include <hwy/targets.h>

namespace muster {
namespace {

constexpr std::size_t kAlignment = 256;
// No rank has this much; a larger request is a mistaken size, and some allocators abort on it.
constexpr std::size_t kLargestAllocation = std::size_t{1} << 40;

}  // namespace

CpuDevice::CpuDevice(const ComputeOptions& options) : Device(options) {
  set_total_memory(static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                   static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

std::string_view CpuDevice::name() const {
  const std::int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX3) != 0) return "cpu (avx512)";
  if ((targets & HWY_AVX2) != 0) return "cpu (avx2)";
  if ((targets & HWY_SSE4) != 0) return "cpu (sse4)";
  return (targets & HWY_NEON) != 0 ? "cpu (neon)" : "cpu (portable)";
}

Result<void*> CpuDevice::allocate(std::size_t size_bytes) {
  // Rounded up: aligned_alloc wants a multiple, and malloc(0) would have no address of its own.
  const std::size_t rounded = (size_bytes / kAlignment + 1) * kAlignment;
  MUSTER_OK(claim(size_bytes));
  void* const memory = size_bytes < kLargestAllocation ? std::aligned_alloc(kAlignment, rounded) : nullptr;
  if (memory == nullptr) {
    unclaim(size_bytes);
    return fail(ErrorCode::kExhausted, "allocate " + std::to_string(size_bytes) +
                                           " bytes of CPU memory: none left; use a smaller batch or model");
  }
  allocations_.emplace_back(std::memset(memory, 0, rounded));
  return memory;
}

void CpuDevice::copy_on_device(void* to, const void* from, std::size_t size_bytes) {
  if (size_bytes != 0) std::memcpy(to, from, size_bytes);
}

void CpuDevice::zero(void* device, std::size_t size_bytes) {
  if (size_bytes != 0) std::memset(device, 0, size_bytes);
}

}  // namespace muster
