// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_device.h"

#include <array>
#include <cstdlib>
#include <cstring>

namespace muster::testing {
namespace {

/// Shared, because the streams may still refer to a record of an event that was given back.
struct Record {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::chrono::steady_clock::time_point when;  // it was done
  bool captured = false;
  std::weak_ptr<HostGraph::Body> graph;  // with captured: the graph refers to this record, too
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

HostGraph::Body::~Body() {
  for (const auto& destructor : destructors) destructor();
}

void HostGraph::launch(HostStream& stream) const {
  stream.enqueue([body = body_] {
    for (const auto& call : body->calls) call();
  });
}

HostStream::HostStream()
    : thread_([this] {
        std::unique_lock lock(mutex_);
        while (true) {
          changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
          if (work_.empty()) return;
          std::function<void()> next = std::move(work_.front());
          work_.pop_front();
          busy_ = true;
          lock.unlock();
          next();
          next = nullptr;  // it may hold the last reference to a graph
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

std::shared_ptr<HostGraph::Body> HostStream::graph() {
  const std::lock_guard lock(mutex_);
  return graph_;
}

bool HostStream::is_capturing() {
  return graph() != nullptr;
}

void HostStream::at_end_of_graph(std::function<void()> destructor) {
  const auto captured = graph();
  const std::lock_guard lock(captured->mutex);
  captured->destructors.push_back(std::move(destructor));
}

void HostStream::enqueue(std::function<void()> work) {
  if (const auto captured = graph()) {
    const std::lock_guard lock(captured->mutex);
    captured->calls.push_back(std::move(work));
    return;
  }
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
void HostDevice::begin_capture(HostStream& stream, HostGraph& graph) {
  graph.destroy();
  const std::lock_guard lock(mutex_);
  captured_ = {&stream};
  const std::lock_guard stream_lock(stream.mutex_);
  stream.graph_ = graph.body_;
}

void HostDevice::end_capture() {
  const std::lock_guard lock(mutex_);
  for (HostStream* stream : captured_) {
    const std::lock_guard stream_lock(stream->mutex_);
    stream->graph_ = nullptr;
  }
  captured_.clear();
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
  const auto graph = static_cast<HostStream*>(stream)->graph();
  made->captured = graph != nullptr;
  made->graph = graph;
  auto* host = static_cast<HostEvent*>(event);
  {
    const std::lock_guard lock(host->mutex);
    host->last = made;
  }
  static_cast<HostStream*>(stream)->enqueue([made] {
    const std::lock_guard lock(made->mutex);
    made->done = true;
    made->when = std::chrono::steady_clock::now();
    made->changed.notify_all();
  });
  return {};
}

Result<void> HostDevice::make_wait(void* stream, void* event) {
  // As on a GPU, the wait is for the last record before this call, and a captured one pulls the stream into
  // the capture.
  const auto record = last_of(event);
  auto* host = static_cast<HostStream*>(stream);
  if (record == nullptr) return {};
  if (const auto graph = record->graph.lock(); graph != nullptr && !host->is_capturing()) {
    const std::lock_guard lock(mutex_);
    captured_.push_back(host);
    const std::lock_guard stream_lock(host->mutex_);
    host->graph_ = graph;
  }
  host->enqueue([record] {
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

Result<void> HostDevice::wait(void* event) {
  const auto record = last_of(event);
  if (record == nullptr) return {};
  if (record->captured) return fail(ErrorCode::kFailed, "an event of a capture was waited for");
  std::unique_lock lock(record->mutex);
  record->changed.wait(lock, [&] { return record->done; });
  return {};
}

Result<std::chrono::nanoseconds> HostDevice::elapsed(void* from, void* to) {
  std::array<std::chrono::steady_clock::time_point, 2> when;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto record = last_of(i == 0 ? from : to);
    if (record == nullptr || record->captured)
      return fail(ErrorCode::kInvalidArgument, "the time of an event that was not recorded, or in a capture");
    const std::lock_guard lock(record->mutex);
    if (!record->done) return fail(ErrorCode::kTimeout, "the time of an event that was not reached");
    when[i] = record->when;
  }
  return when[1] - when[0];
}

Result<bool> HostDevice::is_capturing(void* stream) {
  return static_cast<HostStream*>(stream)->is_capturing();
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
