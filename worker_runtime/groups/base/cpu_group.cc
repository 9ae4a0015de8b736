// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/cpu_group.h"

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"

namespace muster::groups {

void CpuGroup::abort(Error error) {
  tell_failure(failure_.keep(std::move(error)));
}

void CpuGroup::stop() {
  if (is_forked()) return queue_.abandon();
  // An operation that the comm thread is in waits for other ranks; the failure ends it within a moment.
  if (queue_.cancel())
    abort(
        Error{ErrorCode::kCancelled, fmt::format("rank {} destroyed its group during an all_reduce", rank_)});
  queue_.join();
}

OpContext CpuGroup::next_context(OpDescriptor descriptor) {
  descriptor.sequence = sequence_;
  if (!is_point_to_point(descriptor.kind)) ++sequence_;
  if (!around_) return {.descriptor = descriptor, .deadline = {}, .may_spin = true};
  const OpDescriptor& outer = around_->descriptor;
  descriptor.outer_kind = static_cast<std::uint8_t>(outer.kind);
  descriptor.outer_reduce = outer.reduce;
  descriptor.outer_root = outer.root;
  if (outer.kind == OpKind::kAllocate) descriptor.count = outer.count;
  return {.descriptor = descriptor, .deadline = {}, .may_spin = around_->may_spin};
}

/// The operation's turn has come.
void CpuGroup::begin(OpContext& context) {
  const OpDescriptor& op = context.descriptor;
  context.deadline = SteadyClock::now() + timeout_;
  prepare(context);
  record_.begin(op.kind, op.sequence, op.count * size_of(op.dtype), op.root);
}

template <class T>
Result<T> CpuGroup::settle(const OpContext& context, Result<T> result) {
  record_.end(result.has_value());
  if (result) return result;
  const OpDescriptor& op = around_ ? around_->descriptor : context.descriptor;
  const std::string call = fmt::format("{} #{} on rank {}", describe(op), op.sequence, told_rank_);
  const Error error = failure_.keep(fail(call, std::move(result).error()).value());
  tell_failure(error);
  return fail(error);
}

template <class Run>
auto CpuGroup::run_now(OpDescriptor descriptor, Run run) -> decltype(run(OpContext{})) {
  queue_.drain();
  MUSTER_OK(failure_.check());
  OpContext context = next_context(descriptor);
  begin(context);
  return settle(context, run(context));
}

Result<void> CpuGroup::all_reduce(Buffer buffer, ReduceOp op) {
  MUSTER_TRY(const OpDescriptor descriptor, describe_all_reduce(buffer, op));
  return run_now(descriptor, [&](const OpContext& context) { return run_all_reduce(context, buffer); });
}

Result<std::unique_ptr<Work>> CpuGroup::start_all_reduce(Buffer buffer, ReduceOp op) {
  MUSTER_TRY(const OpDescriptor descriptor, describe_all_reduce(buffer, op));
  MUSTER_OK(failure_.check());
  return queue_.start(
      [this, buffer, context = next_context(descriptor)](bool own_thread) mutable -> Result<void> {
        MUSTER_OK(failure_.check());
        context.may_spin = !own_thread;
        begin(context);
        return settle(context, run_all_reduce(context, buffer));
      });
}

Result<void> CpuGroup::broadcast(Buffer buffer, int root) {
  MUSTER_TRY(const OpDescriptor descriptor, describe_broadcast(buffer, root, world_size_));
  return run_now(descriptor, [&](const OpContext& context) { return run_broadcast(context, buffer); });
}

Result<void> CpuGroup::all_gather(ConstBuffer input, Buffer output) {
  MUSTER_TRY(const OpDescriptor descriptor, describe_all_gather(input, output, world_size_));
  return run_now(descriptor,
                 [&](const OpContext& context) { return run_all_gather(context, input, output); });
}

Result<void> CpuGroup::reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) {
  MUSTER_TRY(const OpDescriptor descriptor, describe_reduce_scatter(input, output, op, world_size_));
  return run_now(descriptor,
                 [&](const OpContext& context) { return run_reduce_scatter(context, input, output); });
}

Result<void> CpuGroup::reduce(Buffer buffer, int root, ReduceOp op) {
  MUSTER_TRY(const OpDescriptor descriptor, describe_reduce(buffer, root, op, world_size_));
  return run_now(descriptor, [&](const OpContext& context) { return run_all_reduce(context, buffer); });
}

Result<void> CpuGroup::send(ConstBuffer buffer, int to) {
  return begin_transfer(OpKind::kSend, buffer, to);
}

Result<void> CpuGroup::recv(Buffer buffer, int from) {
  return begin_transfer(OpKind::kRecv, buffer, from);
}

Result<void> CpuGroup::begin_transfer(OpKind kind, const ConstBuffer& buffer, int peer) {
  MUSTER_TRY(const OpDescriptor descriptor, describe_transfer(kind, buffer, peer, rank_, world_size_));
  const Transfer transfer{peer, static_cast<std::byte*>(const_cast<void*>(buffer.data)), buffer.size_bytes(),
                          kind == OpKind::kSend};
  return run_now(descriptor, [&](const OpContext& context) { return run_transfer(context, transfer); });
}

Result<void> CpuGroup::barrier() {
  return run_now(OpDescriptor{}, [&](const OpContext& context) { return run_barrier(context); });
}

Result<void*> CpuGroup::allocate(std::size_t size_bytes) {
  if (size_bytes > kMaxAllocation)
    return fail(ErrorCode::kExhausted, "allocate {} bytes: none left", size_bytes);
  const std::size_t rounded = std::max<std::size_t>((size_bytes + 63) / 64 * 64, 64);
  return run_now(OpDescriptor{.count = size_bytes, .kind = OpKind::kAllocate},
                 [&](const OpContext& context) { return run_allocate(context, rounded); });
}

Result<void*> CpuGroup::run_allocate(const OpContext& context, std::size_t size_bytes) {
  MUSTER_OK(run_barrier(context));
  std::shared_ptr<void> block(std::aligned_alloc(64, size_bytes), std::free);
  if (block == nullptr) return fail(ErrorCode::kExhausted, "no memory for {} bytes", size_bytes);
  std::memset(block.get(), 0, size_bytes);
  blocks_.push_back(std::move(block));
  return blocks_.back().get();
}

}  // namespace muster::groups
