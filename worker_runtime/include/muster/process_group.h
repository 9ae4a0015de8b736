// SPDX-License-Identifier: Apache-2.0
// ProcessGroup: collectives between the ranks of a job. Every rank calls the same operations in the same
// order with the same sizes; send() and recv() concern their two ranks only, which call them between the same
// collectives. Where calls differ a CPU group reports kMismatch naming both operations instead
// of computing garbage; NCCL does not look, so that there it is a timeout or a wrong result. Not thread-safe:
// one thread drives a group. Sticky failure: after an error every later call returns that first error, and
// the other ranks are told. Only an argument error (kInvalidArgument) is found before anything is sent and
// leaves the group usable. CPU groups ("single", "shm", "tcp", "hierarchical") block until the result is in
// place. The NCCL group ("nccl") orders its work after what is already on the compute stream, and the compute
// stream after its result; it blocks the host only in barrier(). The result is the same bits on every rank.
// CPU groups take sums in a fixed order, so that it is the same in every run, too: as a binary tree over the
// ranks in "shm" and "tcp", host by host in "hierarchical"; NCCL's order is its own choice of algorithm.
// Every wait ends by the group's timeout with kTimeout, or kPeerGone, naming the rank and operation.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

#include <muster/dtype.h>
#include <muster/result.h>

namespace muster {

enum class ReduceOp : std::uint8_t { kSum, kAvg, kMin, kMax, kProduct };

/// A collective that was started and may still run. Destroying it waits.
class Work {
 public:
  virtual ~Work() = default;
  /// CPU: blocks until done. NCCL: makes the compute stream wait; does not block the host.
  [[nodiscard]] virtual Result<void> wait() = 0;
  /// NCCL: makes another stream (cudaStream_t) wait, too. CPU: nothing.
  [[nodiscard]] virtual Result<void> wait_on(void* /*stream*/) { return {}; }
  /// After wait(): when it ran, and whether beside the caller or by the caller's thread. All 0 on a GPU.
  struct Times {
    std::chrono::steady_clock::time_point begun, ended;
    bool beside = false;
  };
  [[nodiscard]] virtual Times times() const { return {}; }
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup& operator=(ProcessGroup&&) = delete;  // nor copied

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  [[nodiscard]] virtual std::string_view backend() const = 0;
  [[nodiscard]] virtual DeviceType device() const { return DeviceType::kCpu; }

  /// The error after which the group is of no use, if there was one. Asks nobody and does not block: for a
  /// caller that replays captured collectives and so never hears it from a call.
  [[nodiscard]] virtual Result<void> status() const { return {}; }

  /// In place. Float types, int32 and int64; kAvg for float types (every input times 1/world_size, then
  /// the sum, as PyTorch's DDP and ncclAvg do).
  [[nodiscard]] virtual Result<void> all_reduce(Buffer buffer, ReduceOp op = ReduceOp::kSum) = 0;

  /// Starts an all_reduce that proceeds while the caller computes; the buffer is not touched until wait()
  /// returned. Several may be outstanding; they run in the order they were started.
  [[nodiscard]] virtual Result<std::unique_ptr<Work>> start_all_reduce(Buffer buffer,
                                                                       ReduceOp op = ReduceOp::kSum) = 0;

  /// True where a sum is ((rank 0 + rank 1) + (rank 2 + rank 3)) + ..., a balanced binary tree over the
  /// ranks.
  [[nodiscard]] virtual bool sums_by_tree() const { return false; }

  /// Copies root's buffer to every rank's.
  [[nodiscard]] virtual Result<void> broadcast(Buffer buffer, int root) = 0;

  /// output (world_size * input.count) = inputs of rank 0, 1, ... one after another. May not overlap, except
  /// that input may be this rank's place in output.
  [[nodiscard]] virtual Result<void> all_gather(ConstBuffer input, Buffer output) = 0;

  /// output (input.count / world_size) = this rank's slice of the element-wise reduction of all inputs.
  /// input.count must be a multiple of world_size.
  [[nodiscard]] virtual Result<void> reduce_scatter(ConstBuffer input, Buffer output,
                                                    ReduceOp op = ReduceOp::kSum) = 0;

  /// As all_reduce, but only root's buffer holds the result; those of the other ranks hold nothing of use
  /// afterwards.
  [[nodiscard]] virtual Result<void> reduce(Buffer buffer, int root, ReduceOp op = ReduceOp::kSum) = 0;

  /// Gives the buffer to rank `to`, which calls recv() with the same size. On the CPU it returns once that
  /// rank has the data, whatever the size: of two ranks that exchange data one sends first and the other
  /// receives first.
  [[nodiscard]] virtual Result<void> send(ConstBuffer buffer, int to) = 0;

  /// Fills the buffer with what rank `from` sends.
  [[nodiscard]] virtual Result<void> recv(Buffer buffer, int from) = 0;

  // Made of send() and recv(), and as they are no collectives:

  /// As all_gather, but only root gets the output (world_size * input.count); the others give none ({}).
  [[nodiscard]] Result<void> gather(ConstBuffer input, Buffer output, int root);

  /// output = this rank's part of root's input (world_size * output.count); the others give no input ({}).
  [[nodiscard]] Result<void> scatter(ConstBuffer input, Buffer output, int root);

  /// Returns once every rank has called it.
  [[nodiscard]] virtual Result<void> barrier() = 0;

  /// Zeroed, 64-byte-aligned memory on which this group's collectives are fastest (shared memory: no copy in
  /// or out). A collective: every rank calls it with the same size. Lives as long as the group.
  [[nodiscard]] virtual Result<void*> allocate(std::size_t size_bytes) = 0;

 protected:
  /// Within the memory of the group's device, in the order of its operations.
  [[nodiscard]] virtual Result<void> copy(void* to, const void* from, std::size_t size_bytes);

 private:
  [[nodiscard]] Result<void> exchange(std::string_view what, Buffer part, Buffer whole, int root);
};

/// World of one rank: every collective is a copy or nothing.
[[nodiscard]] std::unique_ptr<ProcessGroup> make_single_group();

}  // namespace muster
