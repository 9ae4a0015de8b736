// SPDX-License-Identifier: Apache-2.0
// NcclDevice: the few stream and event calls the NCCL group needs, behind a table, so that the group's whole
// path runs in tests on a host (tests/support/host_device). Streams and events are opaque (cudaStream_t,
// cudaEvent_t). Called by the group's user and its comm thread; implementations are thread-safe. Errors name
// the call and the GPU.
#pragma once

#include <cstdint>
#include <memory>

#include <muster/result.h>

namespace muster::nccl {

class NcclDevice {
 public:
  virtual ~NcclDevice() = default;
  NcclDevice& operator=(NcclDevice&&) = delete;  // nor copied

  /// Makes the GPU the calling thread's.
  [[nodiscard]] virtual Result<void> select() = 0;
  [[nodiscard]] virtual Result<void*> create_stream() = 0;
  virtual void destroy_stream(void* stream) = 0;
  [[nodiscard]] virtual Result<void*> create_event() = 0;
  virtual void destroy_event(void* event) = 0;
  [[nodiscard]] virtual Result<void> record(void* event, void* stream) = 0;
  /// Work put on `stream` from now on waits for the event's last record.
  [[nodiscard]] virtual Result<void> make_wait(void* stream, void* event) = 0;
  /// Not for events recorded during a capture.
  [[nodiscard]] virtual Result<bool> is_done(void* event) = 0;
  [[nodiscard]] virtual Result<bool> is_capturing(void* stream) = 0;

  /// Zeroed device memory, complete on return.
  [[nodiscard]] virtual Result<void*> allocate(std::size_t size_bytes) = 0;
  virtual void free(void* memory) = 0;
  [[nodiscard]] virtual Result<void> zero(void* memory, std::size_t size_bytes) = 0;
  /// Within the device's memory, in the order of `stream`.
  [[nodiscard]] virtual Result<void> copy(void* to, const void* from, std::size_t size_bytes,
                                          void* stream) = 0;
  /// Blocks until everything on `stream` is done. Not during a capture.
  [[nodiscard]] virtual Result<void> synchronize(void* stream) = 0;

  /// A word that work on a stream counts up and the host reads without a call into the driver.
  [[nodiscard]] virtual Result<std::uint32_t*> create_counter() = 0;
  virtual void destroy_counter(std::uint32_t* counter) = 0;
  [[nodiscard]] virtual Result<void> count_up(std::uint32_t* counter, void* stream) = 0;
};

/// GPU `index`. kUnsupported: built without CUDA; kNotFound: no driver or no such GPU.
[[nodiscard]] Result<std::unique_ptr<NcclDevice>> make_cuda_device(int index);

}  // namespace muster::nccl
