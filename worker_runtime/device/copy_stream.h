// SPDX-License-Identifier: Apache-2.0
// CopyStream: copies from the host that run beside the work of a device's stream: a CUDA stream of their own
// with an event for each slot (cuda_copy_stream.cc). Made by Device::make_copy_stream(), used by the device's
// thread and destroyed before the device. Failure: the first call that failed.
#pragma once

#include <cstddef>
#include <span>

#include <muster/result.h>

namespace muster {

class CopyStream {
 public:
  static constexpr std::size_t kSlots = 2;
  struct Copy {
    void* device = nullptr;
    const void* host = nullptr;
    std::size_t size_bytes = 0;
  };

  virtual ~CopyStream() = default;
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Enqueues them as soon as what the device's stream had to do before the slot's last release() is done.
  /// What that stream is given from now on sees the copies.
  [[nodiscard]] virtual Result<void> copy(std::size_t slot, std::span<const Copy> copies) = 0;
  /// What reads the slot has been given to the device's stream.
  [[nodiscard]] virtual Result<void> release(std::size_t slot) = 0;
  /// Blocks until the slot's copies are done: the host's memory is free.
  [[nodiscard]] virtual Result<void> wait(std::size_t slot) = 0;

 protected:
  CopyStream() = default;
};

}  // namespace muster
