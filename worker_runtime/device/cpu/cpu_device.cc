// SPDX-License-Identifier: Apache-2.0
// This process's memory; copies are memcpy and synchronize has nothing to wait for.
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>

#include <hwy/targets.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"

namespace muster {
namespace {

constexpr std::size_t kBlockAlignment = 256;
// No rank has this much; a larger request is a mistaken size, and some allocators abort on it.
constexpr std::size_t kLargestAllocation = std::size_t{1} << 40;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const ComputeOptions& options) : Device(options) {
    set_total_memory(static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                     static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
  }

  DeviceType type() const override { return DeviceType::kCpu; }
  /// With the widest vector instructions that are used.
  std::string_view name() const override {
    const std::int64_t targets = hwy::SupportedTargets();
    if ((targets & HWY_AVX3) != 0) return "cpu (avx512)";
    if ((targets & HWY_AVX2) != 0) return "cpu (avx2)";
    if ((targets & HWY_SSE4) != 0) return "cpu (sse4)";
    return (targets & HWY_NEON) != 0 ? "cpu (neon)" : "cpu (portable)";
  }

  Result<void*> allocate(std::size_t size_bytes) override {
    // Rounded up: aligned_alloc wants a multiple, and malloc(0) would have no address of its own.
    const std::size_t rounded = (size_bytes / kBlockAlignment + 1) * kBlockAlignment;
    MUSTER_OK(claim(size_bytes));
    void* const memory =
        size_bytes < kLargestAllocation ? std::aligned_alloc(kBlockAlignment, rounded) : nullptr;
    if (memory == nullptr) {
      unclaim(size_bytes);
      return fail(ErrorCode::kExhausted,
                  "allocate {} bytes of CPU memory: none left; use a smaller batch or model", size_bytes);
    }
    allocations_.emplace_back(std::memset(memory, 0, rounded), std::free);
    return memory;
  }
  void copy_to_device(void* device, const void* host, std::size_t size_bytes) override {
    copy_on_device(device, host, size_bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t size_bytes) override {
    copy_on_device(host, device, size_bytes);
  }
  void copy_on_device(void* to, const void* from, std::size_t size_bytes) override {
    if (size_bytes != 0) std::memcpy(to, from, size_bytes);
  }
  void zero(void* device, std::size_t size_bytes) override {
    if (size_bytes != 0) std::memset(device, 0, size_bytes);
  }

  Result<void> synchronize() override { return first_error_; }
  Result<void> status() const override { return first_error_; }
  void report(const Error& error) override {
    if (first_error_) first_error_ = fail(error);
  }

 private:
  std::vector<std::shared_ptr<void>> allocations_;
  Result<void> first_error_;
};

}  // namespace

Compute make_cpu_device(const ComputeOptions& options) {
  return std::make_shared<CpuDevice>(options);
}

}  // namespace muster
