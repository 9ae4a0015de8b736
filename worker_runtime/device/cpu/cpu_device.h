// SPDX-License-Identifier: Apache-2.0
// CpuDevice: this process's memory; copies are memcpy and synchronize has nothing to wait for. allocate()
// reports kExhausted with the size that was asked for.
#pragma once

#include <cstdlib>
#include <vector>

#include "worker_runtime/device/device.h"

namespace muster {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const ComputeOptions& options = {});
  [[nodiscard]] DeviceType type() const override { return DeviceType::kCpu; }
  /// With the widest vector instructions that are used.
  [[nodiscard]] std::string_view name() const override;
  [[nodiscard]] Result<void*> allocate(std::size_t size_bytes) override;
  void copy_to_device(void* device, const void* host, std::size_t size_bytes) override {
    copy_on_device(device, host, size_bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t size_bytes) override {
    copy_on_device(host, device, size_bytes);
  }
  void copy_on_device(void* to, const void* from, std::size_t size_bytes) override;
  void zero(void* device, std::size_t size_bytes) override;
  [[nodiscard]] Result<void> synchronize() override { return first_error_; }
  [[nodiscard]] Result<void> status() const override { return first_error_; }
  void report(const Error& error) override {
    if (first_error_) first_error_ = fail(error);
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<void, Free>> allocations_;
  Result<void> first_error_;
};

}  // namespace muster
