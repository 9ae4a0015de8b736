// SPDX-License-Identifier: Apache-2.0
// HostKernels: what every implementation of Kernels that runs on the CPU shares, its memory. "The device" is
// this process, so copies are memcpy and synchronize has nothing to wait for. Base of the reference and of
// the vector kernels; one object per rank, not thread-safe. Failure: allocate reports kExhausted with the
// size that was asked for.
#pragma once

#include <memory>
#include <vector>

#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels {

struct AlignedDelete {
  void operator()(void* memory) const;
};
using AlignedMemory = std::unique_ptr<void, AlignedDelete>;

/// Zeroed, 256-byte aligned; nullptr when there is no memory left.
[[nodiscard]] AlignedMemory allocate_aligned(std::size_t size_bytes);

class HostKernels : public Kernels {
 public:
  [[nodiscard]] Device device() const final { return Device::kCpu; }
  [[nodiscard]] Result<void*> allocate(std::size_t size_bytes) final;
  void copy_to_device(void* device, const void* host, std::size_t size_bytes) final;
  void copy_to_host(void* host, const void* device, std::size_t size_bytes) final;
  void copy_on_device(void* to, const void* from, std::size_t size_bytes) final;
  void zero(void* device, std::size_t size_bytes) final;
  [[nodiscard]] Result<void> synchronize() final { return first_error_; }
  [[nodiscard]] Result<void> status() const final { return first_error_; }
  void report(const Error& error) final {
    if (first_error_) first_error_ = fail(error);
  }

 private:
  std::vector<AlignedMemory> allocations_;
  Result<void> first_error_;
};

/// A shape no kernel can compute: a size below 1, a kernel larger than the padded image, or tensors of more
/// than 2^31 elements (offsets inside a tensor are ints).
[[nodiscard]] Result<void> check_shape(const ConvShape& shape);
[[nodiscard]] Result<void> check_shape(const LinearShape& shape);

}  // namespace muster::kernels
