// SPDX-License-Identifier: Apache-2.0
// What one collective is, as a value: the descriptor that ranks compare before they touch data, the checks on
// a caller's arguments, and how elements are dealt out to ranks. Pure. Used by every CPU group.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/process_group.h>

#include "rendezvous/base/runtime_page.h"

namespace muster::groups {

/// Which call, as the launcher reads it; of a group's own none is kNone or kCaptured.
using OpKind = PageOperation;

/// Equal on every rank, or the ranks disagree. Travels through shared memory and sockets as it is: no
/// padding.
struct OpDescriptor {
  std::uint64_t sequence = 0;  // collectives of this group before this operation
  std::uint64_t count = 0;     // elements; bytes for kAllocate
  OpKind kind = OpKind::kBarrier;
  std::int32_t root = -1;  // of collectives that have one; kSend, kRecv: the other rank
  DType dtype = DType::kUInt8;
  ReduceOp reduce = ReduceOp::kSum;
  // Of the operation of a group around this one that this is a part of; 0: of none.
  ReduceOp outer_reduce = ReduceOp::kSum;
  std::uint8_t outer_kind = 0;
  std::int32_t outer_root = -1;

  friend bool operator==(const OpDescriptor&, const OpDescriptor&) = default;
};
static_assert(sizeof(OpDescriptor) == 32);

/// "all_reduce(F32 x 100, sum)"; of an operation around it, if there is one.
[[nodiscard]] std::string describe(const OpDescriptor& descriptor);

/// Nothing if all are equal; else one sentence naming the first rank that differs from the first of the group
/// and both operations. `ranks[i]` is the rank that called `descriptors[i]`. The same text on every rank.
[[nodiscard]] std::optional<std::string> find_mismatch(std::span<const OpDescriptor> descriptors,
                                                       std::span<const int> ranks);

/// The same between two ranks: nothing if `theirs` is the other side of `own`, which rank `rank` called.
[[nodiscard]] std::optional<std::string> find_mismatch(const OpDescriptor& own, int rank,
                                                       const OpDescriptor& theirs, int other);

// Arguments of a call, before anything is sent. kInvalidArgument.
[[nodiscard]] Result<void> check_root(std::string_view what, int root, int world_size);
/// With a root as the group's reduce().
[[nodiscard]] Result<OpDescriptor> describe_all_reduce(const Buffer& buffer, ReduceOp op, int root = -1);
[[nodiscard]] Result<OpDescriptor> describe_broadcast(const Buffer& buffer, int root, int world_size);
[[nodiscard]] Result<OpDescriptor> describe_all_gather(const ConstBuffer& input, const Buffer& output,
                                                       int world_size);
[[nodiscard]] Result<OpDescriptor> describe_reduce_scatter(const ConstBuffer& input, const Buffer& output,
                                                           ReduceOp op, int world_size);
[[nodiscard]] Result<OpDescriptor> describe_reduce(const Buffer& buffer, int root, ReduceOp op,
                                                   int world_size);
/// `kind`: kSend to, or kRecv from, `peer`.
[[nodiscard]] Result<OpDescriptor> describe_transfer(OpKind kind, const ConstBuffer& buffer, int peer,
                                                     int rank, int world_size);

inline constexpr std::size_t kMaxAllocation = std::size_t{1} << 40;  // bytes that a rank may ask for

/// Elements [begin, end).
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] std::size_t size() const { return end - begin; }
};

/// Part `index` of `parts` of `count` elements: equal parts of whole cache lines, the last ones shorter or
/// empty.
[[nodiscard]] Slice slice_of(std::size_t count, std::size_t element_bytes, int index, int parts);

/// 0, 1, ... world_size - 1
[[nodiscard]] std::vector<int> all_ranks(int world_size);

/// "rank 1", "ranks 1, 2 and 5"
[[nodiscard]] std::string rank_list(std::span<const int> ranks);

}  // namespace muster::groups
