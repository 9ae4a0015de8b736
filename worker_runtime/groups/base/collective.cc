// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/collective.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"

namespace muster::groups {
namespace {

constexpr std::size_t kCacheLine = 64;

std::string_view name_of(OpKind kind) {
  return kPageOperations.at(static_cast<std::size_t>(kind));
}

std::string_view name_of(ReduceOp op) {
  constexpr std::array<std::string_view, 5> kNames{"sum", "avg", "min", "max", "product"};
  return kNames.at(static_cast<std::size_t>(op));
}

Result<void> check_reduction(std::string_view what, DType dtype, ReduceOp op) {
  if (dtype == DType::kUInt8) return invalid("{} of U8: reductions take float types, I32 and I64", what);
  if (op == ReduceOp::kAvg && (dtype == DType::kInt32 || dtype == DType::kInt64))
    return invalid("{} of {} with avg: averages take float types; use sum and divide", what,
                   to_string(dtype));
  return {};
}

Result<void> check_memory(std::string_view what, const void* data, std::size_t count) {
  if (data == nullptr && count != 0) return invalid("{} of {} elements at a null pointer", what, count);
  return {};
}

}  // namespace

Result<void> check_root(std::string_view what, int root, int world_size) {
  if (root < 0 || root >= world_size)
    return invalid("{} rank {}: the group's ranks are 0 to {}", what, root, world_size - 1);
  return {};
}

std::string describe(const OpDescriptor& d) {
  if (d.outer_kind != 0)
    return describe(OpDescriptor{.count = d.count,
                                 .kind = static_cast<OpKind>(d.outer_kind),
                                 .root = d.outer_root,
                                 .dtype = d.dtype,
                                 .reduce = d.outer_reduce});
  if (d.kind == OpKind::kBarrier) return "barrier()";
  if (d.kind == OpKind::kAllocate) return fmt::format("allocate({} bytes)", d.count);
  std::string text = fmt::format("{}({} x {}", name_of(d.kind), to_string(d.dtype), d.count);
  if (d.kind == OpKind::kAllReduce || d.kind == OpKind::kReduceScatter || d.kind == OpKind::kReduce)
    text += fmt::format(", {}", name_of(d.reduce));
  const std::string_view peer = d.kind == OpKind::kSend ? "to rank" : "from rank";
  if (d.root >= 0) text += fmt::format(", {} {}", is_point_to_point(d.kind) ? peer : "root", d.root);
  return text + ")";
}

std::optional<std::string> find_mismatch(std::span<const OpDescriptor> descriptors,
                                         std::span<const int> ranks) {
  for (std::size_t i = 1; i < descriptors.size(); ++i) {
    if (descriptors[i] == descriptors[0]) continue;
    return fmt::format(
        "ranks disagree on operation #{}: rank {} called {}, rank {} called {}{}; every rank must call the "
        "same operations in the same order",
        descriptors[0].sequence, ranks[0], describe(descriptors[0]), ranks[i], describe(descriptors[i]),
        descriptors[i].sequence == descriptors[0].sequence
            ? ""
            : fmt::format(" as its #{}", descriptors[i].sequence));
  }
  return std::nullopt;
}

std::optional<std::string> find_mismatch(const OpDescriptor& own, int rank, const OpDescriptor& theirs,
                                         int other) {
  if (!is_point_to_point(own.kind)) return find_mismatch(std::array{own, theirs}, std::array{rank, other});
  OpDescriptor expected = own;
  expected.kind = own.kind == OpKind::kSend ? OpKind::kRecv : OpKind::kSend;
  expected.root = rank;
  if (theirs == expected) return std::nullopt;
  const auto& [first, second] = rank < other ? std::pair(own, theirs) : std::pair(theirs, own);
  return fmt::format(
      "two ranks disagree: rank {} called {} after {} collectives, rank {} called {} after {}; a send and "
      "its recv have the same type, size and place between the collectives",
      std::min(rank, other), describe(first), first.sequence, std::max(rank, other), describe(second),
      second.sequence);
}

Result<OpDescriptor> describe_all_reduce(const Buffer& buffer, ReduceOp op, int root) {
  const OpKind kind = root < 0 ? OpKind::kAllReduce : OpKind::kReduce;
  MUSTER_OK(check_reduction(name_of(kind), buffer.dtype, op));
  MUSTER_OK(check_memory(name_of(kind), buffer.data, buffer.count));
  return OpDescriptor{.count = buffer.count, .kind = kind, .root = root, .dtype = buffer.dtype, .reduce = op};
}

Result<OpDescriptor> describe_reduce(const Buffer& buffer, int root, ReduceOp op, int world_size) {
  MUSTER_OK(check_root("reduce to", root, world_size));
  return describe_all_reduce(buffer, op, root);
}

Result<OpDescriptor> describe_broadcast(const Buffer& buffer, int root, int world_size) {
  MUSTER_OK(check_memory("broadcast", buffer.data, buffer.count));
  MUSTER_OK(check_root("broadcast from", root, world_size));
  return OpDescriptor{.count = buffer.count, .kind = OpKind::kBroadcast, .root = root, .dtype = buffer.dtype};
}

Result<OpDescriptor> describe_all_gather(const ConstBuffer& input, const Buffer& output, int world_size) {
  MUSTER_OK(check_memory("all_gather", input.data, input.count));
  MUSTER_OK(check_memory("all_gather", output.data, output.count));
  if (output.count != input.count * static_cast<std::size_t>(world_size) || output.dtype != input.dtype)
    return invalid("all_gather of {} x {} over {} ranks needs an output of {}, not {} x {}",
                   to_string(input.dtype), input.count, world_size,
                   input.count * static_cast<std::size_t>(world_size), to_string(output.dtype), output.count);
  return OpDescriptor{.count = input.count, .kind = OpKind::kAllGather, .dtype = input.dtype};
}

Result<OpDescriptor> describe_reduce_scatter(const ConstBuffer& input, const Buffer& output, ReduceOp op,
                                             int world_size) {
  MUSTER_OK(check_reduction("reduce_scatter", input.dtype, op));
  MUSTER_OK(check_memory("reduce_scatter", input.data, input.count));
  MUSTER_OK(check_memory("reduce_scatter", output.data, output.count));
  if (input.count != output.count * static_cast<std::size_t>(world_size) || output.dtype != input.dtype)
    return invalid(
        "reduce_scatter of {} x {} over {} ranks cannot give {} x {}: the input must be {} times the output",
        to_string(input.dtype), input.count, world_size, to_string(output.dtype), output.count, world_size);
  return OpDescriptor{
      .count = input.count, .kind = OpKind::kReduceScatter, .dtype = input.dtype, .reduce = op};
}

Result<OpDescriptor> describe_transfer(OpKind kind, const ConstBuffer& buffer, int peer, int rank,
                                       int world_size) {
  MUSTER_OK(check_memory(name_of(kind), buffer.data, buffer.count));
  MUSTER_OK(check_root(kind == OpKind::kSend ? "send to" : "recv from", peer, world_size));
  if (peer == rank) return invalid("{} with rank {}: that is this rank itself", name_of(kind), peer);
  return OpDescriptor{.count = buffer.count, .kind = kind, .root = peer, .dtype = buffer.dtype};
}

Slice slice_of(std::size_t count, std::size_t element_bytes, int index, int parts) {
  const std::size_t line = std::max<std::size_t>(kCacheLine / element_bytes, 1);
  const std::size_t even = (count + static_cast<std::size_t>(parts) - 1) / static_cast<std::size_t>(parts);
  const std::size_t part = (even + line - 1) / line * line;
  const std::size_t begin = std::min(static_cast<std::size_t>(index) * part, count);
  return {begin, std::min(begin + part, count)};
}

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string rank_list(std::span<const int> ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    out += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return out;
}

}  // namespace muster::groups

namespace muster {

Result<void> ProcessGroup::copy(void* to, const void* from, std::size_t size_bytes) {
  if (size_bytes != 0) std::memmove(to, from, size_bytes);
  return {};
}

Result<void> ProcessGroup::exchange(std::string_view what, Buffer part, Buffer whole, int root) {
  MUSTER_OK(groups::check_root(fmt::format("{} with root", what), root, world_size()));
  MUSTER_OK(groups::check_memory(what, part.data, part.count));
  const bool gathers = what == "gather";
  if (rank() != root) return gathers ? send(part, root) : recv(part, root);
  const std::size_t all = part.count * static_cast<std::size_t>(world_size());
  if (whole.count != all || whole.dtype != part.dtype)
    return invalid("{} of {} x {} with {} ranks needs {} at the root, not {} x {}", what,
                   to_string(part.dtype), part.count, world_size(), all, to_string(whole.dtype), whole.count);
  MUSTER_OK(groups::check_memory(what, whole.data, whole.count));
  for (int peer = 0; peer < world_size(); ++peer) {
    auto* const at = static_cast<std::byte*>(whole.data) + static_cast<std::size_t>(peer) * part.size_bytes();
    const Buffer place{at, part.count, part.dtype};
    if (peer != root)
      MUSTER_OK(gathers ? recv(place, peer) : send(place, peer));
    else
      MUSTER_OK(gathers ? copy(at, part.data, part.size_bytes()) : copy(part.data, at, part.size_bytes()));
  }
  return {};
}

Result<void> ProcessGroup::gather(ConstBuffer input, Buffer output, int root) {
  return exchange("gather", {const_cast<void*>(input.data), input.count, input.dtype}, output, root);
}

Result<void> ProcessGroup::scatter(ConstBuffer input, Buffer output, int root) {
  return exchange("scatter", output, {const_cast<void*>(input.data), input.count, input.dtype}, root);
}

}  // namespace muster
