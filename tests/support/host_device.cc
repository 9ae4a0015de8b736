// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_device.h"

#include <cstdlib>
#include <cstring>

namespace muster::testing {
namespace {

/// Shared, because the streams may still refer to a record of an event that was given back.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool captured = false;
};

struct HostEvent {
  std::mutex mutex;
  std::shared_ptr<Record> last;
};

std::shared_ptr<Record> last_of(void* event) {
  auto* host = static_cast<HostEvent*>(event);
  const std::lock_guard lock(host->mutex);
  return host->last;
}

}  // namespace

HostStream::HostStream()
    : thread_([this] {
        std::unique_lock lock(mutex_);
        while (true) {
          changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
          if (work_.empty()) return;
          const std::function<void()> next = std::move(work_.front());
          work_.pop_front();
          busy_ = true;
          lock.unlock();
          next();
          lock.lock();
          busy_ = false;
          changed_.notify_all();
        }
      }) {}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void HostStream::enqueue(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

void HostStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

Result<void*> HostDevice::create_stream() {
  return static_cast<void*>(new HostStream);
}
void HostDevice::destroy_stream(void* stream) {
  delete static_cast<HostStream*>(stream);
}
Result<void*> HostDevice::create_event() {
  return static_cast<void*>(new HostEvent);
}
void HostDevice::destroy_event(void* event) {
  delete static_cast<HostEvent*>(event);
}

Result<void> HostDevice::record(void* event, void* stream) {
  auto made = std::make_shared<Record>();
  made->captured = capturing_;
  auto* host = static_cast<HostEvent*>(event);
  {
    const std::lock_guard lock(host->mutex);
    host->last = made;
  }
  static_cast<HostStream*>(stream)->enqueue([made] {
    const std::lock_guard lock(made->mutex);
    made->done = true;
    made->changed.notify_all();
  });
  return {};
}

Result<void> HostDevice::make_wait(void* stream, void* event) {
  // As on a GPU, the wait is for the last record before this call.
  static_cast<HostStream*>(stream)->enqueue([record = last_of(event)] {
    if (record == nullptr) return;
    std::unique_lock lock(record->mutex);
    record->changed.wait(lock, [&] { return record->done; });
  });
  return {};
}

Result<bool> HostDevice::is_done(void* event) {
  const auto record = last_of(event);
  if (record == nullptr) return true;
  if (record->captured) return fail(ErrorCode::kFailed, "an event of a capture was queried");
  const std::lock_guard lock(record->mutex);
  return record->done;
}

Result<bool> HostDevice::is_capturing(void* /*stream*/) {
  return capturing_.load();
}

Result<void*> HostDevice::allocate(std::size_t size_bytes) {
  void* memory = std::calloc(1, size_bytes);
  if (memory == nullptr)
    return fail(ErrorCode::kExhausted, "calloc of " + std::to_string(size_bytes) + " bytes");
  return memory;
}

void HostDevice::free(void* memory) {
  std::free(memory);
}

Result<void> HostDevice::zero(void* memory, std::size_t size_bytes) {
  std::memset(memory, 0, size_bytes);
  return {};
}

Result<void> HostDevice::copy(void* to, const void* from, std::size_t size_bytes, void* stream) {
  static_cast<HostStream*>(stream)->enqueue([=] { std::memcpy(to, from, size_bytes); });
  return {};
}
Result<void> HostDevice::synchronize(void* stream) {
  static_cast<HostStream*>(stream)->synchronize();
  return {};
}

Result<std::uint32_t*> HostDevice::create_counter() {
  return new std::uint32_t(0);
}
void HostDevice::destroy_counter(std::uint32_t* counter) {
  delete counter;
}

Result<void> HostDevice::count_up(std::uint32_t* counter, void* stream) {
  static_cast<HostStream*>(stream)->enqueue([counter] { __atomic_fetch_add(counter, 1U, __ATOMIC_ACQ_REL); });
  return {};
}

}  // namespace muster::testing
