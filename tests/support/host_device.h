// SPDX-License-Identifier: Apache-2.0
// HostDevice: a GPU's streams and events on the CPU, for the NCCL group's tests. A stream is a thread that
// runs what was put on it in order, so work is truly asynchronous and a missing event wait shows as wrong
// data. The fake NCCL receives a HostStream* where the real one receives a cudaStream_t.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "worker_runtime/groups/nccl_device.h"

namespace muster::testing {

class HostStream {
 public:
  HostStream();
  virtual ~HostStream();  // runs what is left
  virtual void enqueue(std::function<void()> work);
  void synchronize();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

class HostDevice final : public nccl::NcclDevice {
 public:
  Result<void> select() override { return {}; }
  Result<void*> create_stream() override;
  void destroy_stream(void* stream) override;
  Result<void*> create_event() override;
  void destroy_event(void* event) override;
  Result<void> record(void* event, void* stream) override;
  Result<void> make_wait(void* stream, void* event) override;
  Result<bool> is_done(void* event) override;
  Result<bool> is_capturing(void* stream) override;
  Result<void*> allocate(std::size_t size_bytes) override;
  void free(void* memory) override;
  Result<void> zero(void* memory, std::size_t size_bytes) override;
  Result<void> copy(void* to, const void* from, std::size_t size_bytes, void* stream) override;
  Result<void> synchronize(void* stream) override;
  Result<std::uint32_t*> create_counter() override;
  void destroy_counter(std::uint32_t* counter) override;
  Result<void> count_up(std::uint32_t* counter, void* stream) override;

  /// From now on collectives count as captured: their events are not to be queried, and asking is an error.
  void pretend_capture(bool on) { capturing_ = on; }

 private:
  std::atomic<bool> capturing_{false};
};

}  // namespace muster::testing
