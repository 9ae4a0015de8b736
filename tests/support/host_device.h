// SPDX-License-Identifier: Apache-2.0
// HostDevice: a GPU's streams and events on the CPU, for the NCCL group's tests. A stream is a thread that
// runs what was put on it in order, so work is truly asynchronous and a missing event wait shows as wrong
// data. The fake NCCL receives a HostStream* where the real one receives a cudaStream_t.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "worker_runtime/groups/nccl/nccl_device.h"

namespace muster::testing {

/// A CUDA graph: what was put on streams while they were captured, in the order of the calls. Launches that
/// are still queued keep what it refers to alive, as the driver does.
class HostGraph {
 public:
  struct Body {
    ~Body();
    std::mutex mutex;
    std::vector<std::function<void()>> calls;
    std::vector<std::function<void()>> destructors;
  };
  /// Destroys what was captured, but for launches on their way.
  void destroy() { body_ = std::make_shared<Body>(); }
  void launch(class HostStream& stream) const;

 private:
  friend class HostDevice;
  std::shared_ptr<Body> body_ = std::make_shared<Body>();
};

class HostStream {
 public:
  HostStream();
  virtual ~HostStream();  // runs what is left
  /// Runs `work` in its turn; while the stream is captured, puts it into the graph.
  virtual void enqueue(std::function<void()> work);
  virtual bool is_capturing();
  /// Called when the graph that is being captured is destroyed (cudaGraphRetainUserObject).
  virtual void at_end_of_graph(std::function<void()> destructor);
  void synchronize();

 private:
  friend class HostDevice;
  std::shared_ptr<HostGraph::Body> graph();

  std::mutex mutex_;
  std::shared_ptr<HostGraph::Body> graph_;  // being captured
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
  /// Blocks until what was recorded is done.
  Result<void> wait(void* event);
  /// Between the times at which both, which are done, were reached.
  Result<std::chrono::nanoseconds> elapsed(void* from, void* to);
  Result<bool> is_capturing(void* stream) override;
  Result<void*> allocate(std::size_t size_bytes) override;
  void free(void* memory) override;
  Result<void> zero(void* memory, std::size_t size_bytes) override;
  Result<void> copy(void* to, const void* from, std::size_t size_bytes, void* stream) override;
  Result<void> synchronize(void* stream) override;
  Result<std::uint32_t*> create_counter() override;
  void destroy_counter(std::uint32_t* counter) override;
  Result<void> count_up(std::uint32_t* counter, void* stream) override;

  /// From now on what is put on `stream`, and on the streams that wait for its events, becomes `graph`. Such
  /// events are not to be queried: asking is an error.
  void begin_capture(HostStream& stream, HostGraph& graph);
  void end_capture();

 private:
  std::mutex mutex_;
  std::vector<HostStream*> captured_;
};

}  // namespace muster::testing
