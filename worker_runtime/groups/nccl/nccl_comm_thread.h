// SPDX-License-Identifier: Apache-2.0
// NcclCommThread: the ONE thread that owns a communicator. Every call on it (start, collectives, questions,
// abort, destroy) is made here, because NCCL allows an abort only while no other thread is inside a call on
// the communicator. It is also the watchdog: a collective that does not finish within the limit, one that
// waits for a process of this host that has ended (which NCCL's transports within a host do not notice), or
// an asynchronous error ends the communicator and leaves a sticky error that names rank, operation and
// sequence number. Used by NcclGroup's thread only: submit(), wait_issued() and wait_finished() are its whole
// traffic.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "worker_runtime/core/runtime_page_map.h"
#include "worker_runtime/groups/base/peer_watch.h"
#include "worker_runtime/groups/nccl/nccl_api.h"
#include "worker_runtime/groups/nccl/nccl_device.h"
#include "worker_runtime/groups/nccl/nccl_lifecycle.h"

namespace muster::nccl {

/// Events are made once and used again. Thread-safe.
class EventPool {
 public:
  explicit EventPool(std::shared_ptr<NcclDevice> device) : device_(std::move(device)) {}
  ~EventPool();
  [[nodiscard]] Result<void*> take();
  void give_back(void* event);

 private:
  std::shared_ptr<NcclDevice> device_;
  std::mutex mutex_;
  std::vector<void*> free_;
};

/// One collective on its way. The events return to the pool when the last holder lets go.
struct Collective {
  enum class State { kQueued, kIssued, kFinished };

  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;  // as NCCL counts for this kind
  DataType type = kFloat32;
  ReduceKind reduce = kSum;
  int root = -1;  // of a broadcast
  PageOperation operation = PageOperation::kAllReduce;
  std::uint64_t sequence = 0;
  std::uint64_t size_bytes = 0;
  std::string name;       // "all_reduce #5 of 1024 F32"
  bool captured = false;  // becomes part of a CUDA graph: its events may not be queried
  void* ready = nullptr;  // on the compute stream: inputs are there
  void* done = nullptr;   // on the comm stream: outputs are there
  State state = State::kQueued;
  Instant issued_at{};
  std::shared_ptr<EventPool> pool;

  ~Collective();
};

class NcclCommThread {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    UniqueId id{};
    Limits limits;
    groups::PeerWatch peers = {};  // the other ranks of this host
    CollectiveRecord record = {};  // of the oldest collective that the GPU has not finished
  };

  NcclCommThread(const NcclApi& api, std::shared_ptr<NcclDevice> device, Options options);
  /// Ends the communicator cleanly if it is healthy. A library that does not return within its deadlines ends
  /// the process with exit code 70 and a line on stderr: a thread inside it can be neither joined nor
  /// abandoned.
  ~NcclCommThread();

  /// Blocks until every rank has joined.
  [[nodiscard]] Result<void> wait_started();
  [[nodiscard]] Result<void> submit(std::shared_ptr<Collective> collective);
  /// Blocks until the collective is on the comm stream (microseconds, unless NCCL still connects).
  [[nodiscard]] Result<void> wait_issued(const Collective& collective);
  /// Blocks until the GPU has finished it.
  [[nodiscard]] Result<void> wait_finished(const Collective& collective);
  /// The sticky error, if the communicator has failed.
  [[nodiscard]] std::optional<Error> failure();

 private:
  void run();
  void start_communicator();
  void issue(const std::shared_ptr<Collective>& collective);
  [[nodiscard]] Status call(const Collective& collective);
  [[nodiscard]] Action drive(Event event, Status status, const std::string& subject);
  void watch();
  void watch_captured();
  void watch_peers();
  void look_at_peers();
  void tell_of(const Collective& collective);
  void set_failure(Error error);
  void device_failed(const Error& error, const std::string& subject);
  [[nodiscard]] Status asynchronous_error() const;
  [[nodiscard]] Error error_of(const Lifecycle& state, const std::string& subject);
  /// Takes out what the GPU has finished; the last of them, or null.
  [[nodiscard]] Result<std::shared_ptr<Collective>> take_finished();
  [[nodiscard]] std::string oldest_name();
  [[nodiscard]] std::string captured_name() const;
  template <class Condition>
  [[nodiscard]] Result<void> wait_for(Condition condition, const std::string& subject);

  const NcclApi api_;
  const std::shared_ptr<NcclDevice> device_;
  Options options_;

  // Of the comm thread alone, as the record is.
  Comm comm_ = nullptr;
  Lifecycle lifecycle_;
  void* stream_ = nullptr;
  std::uint32_t* captured_begun_ = nullptr;     // counted up on the GPU in front of each captured collective,
  std::uint32_t* captured_finished_ = nullptr;  // and behind it
  std::uint32_t last_begun_ = 0, last_finished_ = 0;
  Instant captured_progress_{};
  Instant progress_{};      // when a collective was last seen to begin or finish
  Instant looked_{};        // at the peers
  std::vector<int> ended_;  // ranks that were gone when first one was
  bool has_captured_ = false;
  std::string last_name_ = "start";
  std::string last_captured_;
  std::uint64_t told_ = 0;  // sequence of the collective in the record; 0: a captured one
  std::deque<std::shared_ptr<Collective>> outstanding_;

  // Shared.
  std::mutex mutex_;
  std::condition_variable to_thread_, to_users_;
  std::deque<std::shared_ptr<Collective>> queue_;
  std::optional<Error> failure_;
  bool started_ = false, stopping_ = false, over_ = false;
  int finish_waiters_ = 0;

  std::thread thread_;  // last: started when everything above is there
};

}  // namespace muster::nccl
