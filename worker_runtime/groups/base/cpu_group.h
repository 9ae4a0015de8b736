// SPDX-License-Identifier: Apache-2.0
// CpuGroup: what every CPU process group shares: arguments are checked before anything is sent, the first
// error sticks and is told to the others, started operations and direct calls run in the order of the calls,
// each with a deadline. Derived groups implement run_*(): one collective, called by one thread at a time.
// Owned by the user of the group. A derived class' destructor calls stop() first, because the comm thread
// runs its run_all_reduce().
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unistd.h>
#include <vector>

#include <muster/process_group.h>

#include "rendezvous/base/clock.h"
#include "worker_runtime/core/runtime_page_map.h"
#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/base/comm_queue.h"

namespace muster::groups {

/// How one collective waits.
struct OpContext {
  OpDescriptor descriptor;
  Instant deadline;
  bool may_spin = true;  // false beside a computation on the same cores
};

/// The first error of a group, kept for every later call. Thread-safe: the caller's thread and the comm
/// thread share it.
class GroupFailure {
 public:
  /// The first error, or nothing yet. One load while all is well.
  [[nodiscard]] Result<void> check() const {
    if (!failed_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    return fail(*first_);
  }

  /// Keeps `error` unless there is one already; returns the one that is kept.
  Error keep(Error error) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(error);
    failed_.store(true, std::memory_order_release);
    return *first_;
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> first_;
};

/// What this rank gives to, or takes from, another within an operation.
struct Transfer {
  int peer = 0;  // of this group
  std::byte* data = nullptr;
  std::size_t size = 0;  // bytes
  bool sends = false;
};

class CpuGroup : public ProcessGroup {
 public:
  [[nodiscard]] int rank() const final { return rank_; }
  [[nodiscard]] int world_size() const final { return world_size_; }

  [[nodiscard]] Result<void> status() const final { return failure_.check(); }
  [[nodiscard]] Result<void> all_reduce(Buffer buffer, ReduceOp op) final;
  [[nodiscard]] Result<std::unique_ptr<Work>> start_all_reduce(Buffer buffer, ReduceOp op) final;
  [[nodiscard]] bool sums_by_tree() const override { return true; }
  [[nodiscard]] Result<void> broadcast(Buffer buffer, int root) final;
  [[nodiscard]] Result<void> all_gather(ConstBuffer input, Buffer output) final;
  [[nodiscard]] Result<void> reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) final;
  [[nodiscard]] Result<void> reduce(Buffer buffer, int root, ReduceOp op) final;
  [[nodiscard]] Result<void> send(ConstBuffer buffer, int to) final;
  [[nodiscard]] Result<void> recv(Buffer buffer, int from) final;
  [[nodiscard]] Result<void> barrier() final;
  [[nodiscard]] Result<void*> allocate(std::size_t size_bytes) final;

  /// As part of `context`'s operation, which may be that of a group around this one. The two sides compare
  /// their descriptors first.
  virtual Result<void> run_transfer(const OpContext& context, const Transfer& transfer) = 0;

  /// Breaks the group with this error, here and, as far as they can be told, at the other ranks. Thread-safe.
  void abort(Error error);

  /// The coming calls are parts of this operation of a group around this one, and wait as it does.
  void work_for(const OpContext& around, int rank) { around_ = around, told_rank_ = rank; }

  /// Before the first collective: where it tells what it is in. Of a group within another one: nowhere.
  void record_in(CollectiveRecord record) { record_ = std::move(record); }

 protected:
  CpuGroup(int rank, int world_size, Millis timeout)
      : rank_(rank), world_size_(world_size), timeout_(timeout) {}

  /// A copy that a forked child has: to the others it is nobody.
  [[nodiscard]] bool is_forked() const { return ::getpid() != pid_; }
  /// No started operation runs after this.
  void stop();

  /// With a root in the descriptor only that rank needs the result.
  virtual Result<void> run_all_reduce(const OpContext& context, Buffer buffer) = 0;
  virtual Result<void> run_broadcast(const OpContext& context, Buffer buffer) = 0;
  virtual Result<void> run_all_gather(const OpContext& context, ConstBuffer input, Buffer output) = 0;
  virtual Result<void> run_reduce_scatter(const OpContext& context, ConstBuffer input, Buffer output) = 0;
  virtual Result<void> run_barrier(const OpContext& context) = 0;
  /// Zeroed, 64-byte aligned; `size_bytes` is a positive multiple of 64. Private memory unless a group knows
  /// better.
  virtual Result<void*> run_allocate(const OpContext& context, std::size_t size_bytes);
  /// Tells the others; must not block, may come from any thread, may come again.
  virtual void tell_failure(const Error& error) = 0;

  /// Before each run_*().
  virtual void prepare(const OpContext& /*context*/) {}

  [[nodiscard]] std::size_t me() const { return static_cast<std::size_t>(rank_); }
  /// False of a reduction for another rank.
  [[nodiscard]] static bool needs_result(const OpContext& op, std::size_t member) {
    return op.descriptor.root < 0 || static_cast<std::size_t>(op.descriptor.root) == member;
  }

 private:
  /// Runs one collective after everything that was started, keeping and telling its failure.
  template <class Run>
  auto run_now(OpDescriptor descriptor, Run run) -> decltype(run(OpContext{}));
  Result<void> begin_transfer(OpKind kind, const ConstBuffer& buffer, int peer);
  OpContext next_context(OpDescriptor descriptor);
  void begin(OpContext& context);
  template <class T>
  Result<T> settle(const OpContext& context, Result<T> result);

  const int pid_ = ::getpid();
  const int rank_;
  const int world_size_;
  const Millis timeout_;
  std::optional<OpContext> around_;
  int told_rank_ = rank_;       // in the group of around_
  std::uint64_t sequence_ = 0;  // of the next call; touched by the calling thread only
  GroupFailure failure_;
  CollectiveRecord record_;  // told by who runs an operation, one at a time
  std::vector<std::shared_ptr<void>> blocks_;
  CommQueue queue_;
};

}  // namespace muster::groups
