// SPDX-License-Identifier: Apache-2.0
// ThreadGroup: a process group whose ranks are threads of the test, a fake with the semantics of the real
// ones: sums in rank order, mismatching operations are reported by every rank, a started reduction does
// nothing before wait(), a failure is sticky. It can be told to fail at an operation.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <muster/process_group.h>

#include "tests/support/collective_group.h"

namespace muster::test {

/// What the ranks share.
struct ThreadWorld {
  explicit ThreadWorld(int ranks)
      : size(ranks), pointers(static_cast<std::size_t>(ranks)), ops(pointers.size()) {}

  /// Returns once every rank is here. False: a rank has left for good.
  bool barrier() {
    std::unique_lock lock(mutex);
    if (broken) return false;
    const int round = generation;
    if (++arrived == size) {
      arrived = 0;
      ++generation;
      changed.notify_all();
      return true;
    }
    changed.wait(lock, [&] { return generation != round || broken; });
    return generation != round;  // all had arrived, even if one has left since
  }
  void break_up() {
    const std::lock_guard lock(mutex);
    broken = true;
    changed.notify_all();
  }

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int arrived = 0;
  int generation = 0;
  bool broken = false;
  std::vector<void*> pointers;   // published between two barriers
  std::vector<std::string> ops;  // likewise: what each rank thinks is going on
};

class ThreadGroup final : public CollectiveGroup {
 public:
  ThreadGroup(std::shared_ptr<ThreadWorld> world, int rank) : world_(std::move(world)), rank_(rank) {}
  ~ThreadGroup() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int world_size() const override { return world_->size; }
  [[nodiscard]] std::string_view backend() const override { return "threads"; }
  [[nodiscard]] Result<void> all_reduce(Buffer buffer, ReduceOp op) override;
  [[nodiscard]] Result<std::unique_ptr<Work>> start_all_reduce(Buffer buffer, ReduceOp op) override;
  [[nodiscard]] Result<void> broadcast(Buffer buffer, int root) override;
  [[nodiscard]] Result<void> all_gather(ConstBuffer input, Buffer output) override;
  [[nodiscard]] Result<void> reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) override;
  [[nodiscard]] Result<void> barrier() override;
  [[nodiscard]] Result<void*> allocate(std::size_t size_bytes) override;

  /// What was called, in order: "start 128", "reduce 256" (elements).
  std::vector<std::string> calls;
  /// Reductions that still succeed; below 0: all of them.
  int reductions_until_failure = -1;

 private:
  /// Publishes this rank's pointer, checks that all ranks do the same thing, then runs `body` between
  /// barriers.
  [[nodiscard]] Result<void> meet(const std::string& op, void* pointer, const std::function<void()>& body);

  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  bool failed_ = false;
  std::vector<void*> blocks_;
};

/// Runs `body` as `ranks` threads, each with its group. Exceptions of Catch's REQUIRE must not leave a
/// thread: bodies return an error text (empty: fine), which is given back per rank.
[[nodiscard]] std::vector<std::string> run_ranks(int ranks,
                                                 const std::function<std::string(ThreadGroup&)>& body);

}  // namespace muster::test
