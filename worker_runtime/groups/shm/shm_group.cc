// SPDX-License-Identifier: Apache-2.0
// Rules that make one barrier enough where there is one:
// - A slot is used in turns of two. Use u+2 overwrites use u's slot, after the barrier of use u+1, to which a
// member
//   comes only when it has finished reading use u.
// - An announcement is overwritten two operations later, for the same reason.
#include "worker_runtime/groups/shm/shm_group.h"

#include <cstring>
#include <new>
#include <unistd.h>

#include <fmt/format.h>

#include "worker_runtime/groups/base/reduce_kernels.h"
#include "worker_runtime/groups/shm/shm_barrier.h"

namespace muster::groups {
namespace {

constexpr std::size_t kSmallBytes = std::size_t{16} << 10;  // up to here every rank reduces everything itself

struct Arena {
  std::shared_ptr<ShmSegment> segment;
  std::size_t part_bytes;  // of each member
};

class ShmGroup final : public CpuGroup {
 public:
  ShmGroup(const ShmGroupOptions& options, std::shared_ptr<ShmSegment> control, ShmLayout layout)
      : CpuGroup(options.me, static_cast<int>(options.ranks.size()), options.timeout),
        ranks_(options.ranks),
        make_segment_(options.make_segment),
        control_(std::move(control)),
        layout_(layout),
        header_(*std::launder(reinterpret_cast<ShmHeader*>(control_->base()))),
        members_(std::launder(reinterpret_cast<ShmMember*>(control_->base() + sizeof(ShmHeader))),
                 ranks_.size()),
        barrier_(header_, members_, options.me) {}

  ~ShmGroup() override {
    stop();
    barrier_.leave();
  }

  std::string_view backend() const override { return "shm"; }

  /// Fills in this member's line and meets the others twice: before and after the pidfds are opened.
  Result<void> introduce(Instant deadline) {
    ShmMember& mine = members_[me()];
    mine.pid = static_cast<std::uint32_t>(::getpid());
    mine.rank = static_cast<std::uint32_t>(ranks_[me()]);
    mine.pid_namespace = pid_namespace_inode();
    if (::sched_getaffinity(0, sizeof mine.cpus, &mine.cpus) != 0) CPU_ZERO(&mine.cpus);
    MUSTER_OK(barrier_.arrive_and_wait(deadline, false));
    barrier_.watch_members();
    return barrier_.arrive_and_wait(deadline, false);
  }

 protected:
  Result<void> run_barrier(const OpContext& op) override {
    announce(op, {});
    return meet_first(op);
  }

  Result<void> run_all_reduce(const OpContext& op, Buffer buffer) override {
    if (buffer.size_bytes() <= std::min(kSmallBytes, layout_.slot_bytes)) return all_reduce_small(op, buffer);
    announce(op, place_of(buffer.data, buffer.size_bytes()));
    MUSTER_OK(meet_first(op));
    if (const auto places = everybodys_places(op, buffer.size_bytes()))
      return all_reduce_in_place(op, buffer, *places);
    return all_reduce_staged(op, buffer);
  }

  Result<void> run_broadcast(const OpContext& op, Buffer buffer) override {
    auto* data = static_cast<std::byte*>(buffer.data);
    const bool root = op.descriptor.root == rank();
    const auto source = static_cast<std::size_t>(op.descriptor.root);
    const auto copy_in = [&](std::byte* slot, std::size_t begin, std::size_t size) {
      if (root) std::memcpy(slot, data + begin, size);
    };
    const auto copy_out = [&](std::uint64_t use, std::size_t begin, std::size_t size) {
      if (!root) std::memcpy(data + begin, slot(source, use), size);
    };
    return staged(op, buffer.size_bytes(), layout_.slot_bytes, copy_in, copy_out);
  }

  Result<void> run_all_gather(const OpContext& op, ConstBuffer input, Buffer output) override {
    const auto* in = static_cast<const std::byte*>(input.data);
    auto* out = static_cast<std::byte*>(output.data);
    const std::size_t total = input.size_bytes();
    const auto copy_in = [&](std::byte* slot, std::size_t begin, std::size_t size) {
      std::memcpy(slot, in + begin, size);
    };
    const auto copy_out = [&](std::uint64_t use, std::size_t begin, std::size_t size) {
      for (std::size_t i = 0; i < members_.size(); ++i) {
        std::byte* place = out + i * total + begin;
        if (place != in + begin) std::memcpy(place, slot(i, use), size);
      }
    };
    return staged(op, total, layout_.slot_bytes, copy_in, copy_out);
  }

  Result<void> run_reduce_scatter(const OpContext& op, ConstBuffer input, Buffer output) override {
    const std::size_t share = output.size_bytes();
    if (input.size_bytes() > kSmallBytes) {
      announce(op, place_of(input.data, input.size_bytes()));
      MUSTER_OK(meet_first(op));
      if (const auto places = everybodys_places(op, input.size_bytes())) {
        std::vector<const void*> inputs(places->begin(), places->end());
        for (const void*& in : inputs) in = static_cast<const std::byte*>(in) + me() * share;
        reduce_into(op, inputs, output.data, output.count);
        return meet(op);
      }
    }
    // A slot carries a piece of every rank's share, `stride` bytes apart.
    const auto* in = static_cast<const std::byte*>(input.data);
    auto* out = static_cast<std::byte*>(output.data);
    const std::size_t stride = std::max<std::size_t>(layout_.slot_bytes / members_.size() / 64 * 64, 64);
    const auto copy_in = [&](std::byte* slot, std::size_t begin, std::size_t size) {
      for (std::size_t i = 0; i < members_.size(); ++i)
        std::memcpy(slot + i * stride, in + i * share + begin, size);
    };
    const auto copy_out = [&](std::uint64_t use, std::size_t begin, std::size_t size) {
      std::vector<const void*> inputs = slots(use);
      for (const void*& piece : inputs) piece = static_cast<const std::byte*>(piece) + me() * stride;
      reduce_into(op, inputs, out + begin, size / size_of(output.dtype));
    };
    return staged(op, share, stride, copy_in, copy_out, input.size_bytes() > kSmallBytes);
  }

  Result<void*> run_allocate(const OpContext& op, std::size_t size_bytes) override {
    announce(op, {});
    MUSTER_OK(meet_first(op));
    const std::size_t part = (size_bytes + 4095) / 4096 * 4096;
    const SegmentRequest request{.size = part * members_.size(),
                                 .own_begin = part * me(),
                                 .own_end = part * (me() + 1),
                                 .member = rank()};
    auto segment = make_segment_(request, [&](const std::string& mine) { return exchange_texts(op, mine); });
    if (segment) {
      std::byte* own = (*segment)->base() + part * me();
      arenas_.push_back({*std::move(segment), part});
      return own;
    }
    // No room for a shared arena is no reason to stop: private memory goes through the staging slots.
    if (segment.error().code == ErrorCode::kExhausted || segment.error().code == ErrorCode::kUnsupported)
      return CpuGroup::run_allocate(op, size_bytes);
    return fail(std::move(segment).error());
  }

  void tell_failure(const Error& error) override { barrier_.tell_failure(error); }

 private:
  std::size_t me() const { return static_cast<std::size_t>(rank()); }
  std::byte* slot(std::size_t member, std::uint64_t use) const {
    return control_->base() + layout_.slot(member, use);
  }
  std::vector<const void*> slots(std::uint64_t use) const {
    std::vector<const void*> out(members_.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = slot(i, use);
    return out;
  }

  Announcement& announcement(std::size_t member, const OpContext& op) const {
    return members_[member].announcements[op.descriptor.sequence % 2];
  }
  void announce(const OpContext& op, ArenaPlace place) { announcement(me(), op) = {op.descriptor, place}; }

  Result<void> meet(const OpContext& op) { return barrier_.arrive_and_wait(op.deadline, op.may_spin); }

  /// The first barrier of an operation, after which the announcements are compared.
  Result<void> meet_first(const OpContext& op) {
    MUSTER_OK(meet(op));
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (announcement(i, op).descriptor != op.descriptor) [[unlikely]]
        return disagreement(op);
    return {};
  }

  Result<void> disagreement(const OpContext& op) const {
    std::vector<OpDescriptor> all;
    all.reserve(members_.size());
    for (std::size_t i = 0; i < members_.size(); ++i) all.push_back(announcement(i, op).descriptor);
    return fail(ErrorCode::kMismatch, find_mismatch(all, ranks_).value_or("ranks disagree"));
  }

  ArenaPlace place_of(const void* data, std::size_t size) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (std::size_t i = 0; i < arenas_.size(); ++i) {
      const auto begin =
          reinterpret_cast<std::uintptr_t>(arenas_[i].segment->base()) + arenas_[i].part_bytes * me();
      if (address >= begin && address + size <= begin + arenas_[i].part_bytes)
        return {.arena = static_cast<std::uint32_t>(i + 1), .offset = address - begin};
    }
    return {};
  }

  /// Where this operation's buffer of every member is in this process; nothing unless all are in arenas.
  std::optional<std::vector<void*>> everybodys_places(const OpContext& op, std::size_t size) const {
    std::vector<void*> out(members_.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const ArenaPlace place = announcement(i, op).place;
      if (place.arena == 0 || place.arena > arenas_.size()) return std::nullopt;
      const Arena& arena = arenas_[place.arena - 1];
      if (place.offset > arena.part_bytes || size > arena.part_bytes - place.offset) return std::nullopt;
      out[i] = arena.segment->base() + arena.part_bytes * i + place.offset;
    }
    return out;
  }

  void reduce_into(const OpContext& op, std::span<const void* const> inputs, void* output,
                   std::size_t count) const {
    void* outputs[] = {output};
    reduce(inputs, outputs, count, op.descriptor.dtype, op.descriptor.reduce,
           scale_of(op.descriptor.reduce, world_size()));
  }

  /// Pieces of `total` bytes through the slots, one barrier each: copy_in(own slot, begin, size), meet,
  /// copy_out(use, begin, size). The first barrier compares the announcements unless that has happened.
  template <class CopyIn, class CopyOut>
  Result<void> staged(const OpContext& op, std::size_t total, std::size_t piece, CopyIn copy_in,
                      CopyOut copy_out, bool announced = false) {
    if (!announced) announce(op, {});
    std::size_t begin = 0;
    do {
      const std::size_t size = std::min(piece, total - begin);
      const std::uint64_t use = slot_use_++;
      if (size != 0) copy_in(slot(me(), use), begin, size);
      MUSTER_OK(announced ? meet(op) : meet_first(op));
      announced = true;
      if (size != 0) copy_out(use, begin, size);
      begin += size;
    } while (begin < total);
    return {};
  }

  Result<void> all_reduce_small(const OpContext& op, Buffer buffer) {
    const auto copy_in = [&](std::byte* slot, std::size_t, std::size_t size) {
      std::memcpy(slot, buffer.data, size);
    };
    const auto copy_out = [&](std::uint64_t use, std::size_t, std::size_t) {
      reduce_into(op, slots(use), buffer.data, buffer.count);
    };
    return staged(op, buffer.size_bytes(), kSmallBytes, copy_in, copy_out);
  }

  Result<void> all_reduce_in_place(const OpContext& op, Buffer buffer, std::vector<void*> places) {
    const std::size_t element = size_of(buffer.dtype);
    const Slice own = slice_of(buffer.count, element, rank(), world_size());
    for (void*& place : places) place = static_cast<std::byte*>(place) + own.begin * element;
    const std::vector<const void*> inputs(places.begin(), places.end());
    reduce(inputs, places, own.size(), buffer.dtype, op.descriptor.reduce,
           scale_of(op.descriptor.reduce, world_size()));
    return meet(op);
  }

  /// Each piece: copy in, meet, reduce the own slice of the piece into the own slot, meet, copy everybody's
  /// slice out.
  Result<void> all_reduce_staged(const OpContext& op, Buffer buffer) {
    const std::size_t element = size_of(buffer.dtype);
    const std::size_t piece = layout_.slot_bytes / element;
    for (std::size_t begin = 0; begin < buffer.count; begin += piece) {
      const std::size_t count = std::min(piece, buffer.count - begin);
      std::byte* data = static_cast<std::byte*>(buffer.data) + begin * element;
      const std::uint64_t use = slot_use_++;
      std::memcpy(slot(me(), use), data, count * element);
      MUSTER_OK(meet(op));
      const Slice own = slice_of(count, element, rank(), world_size());
      std::vector<const void*> inputs = slots(use);
      for (const void*& input : inputs) input = static_cast<const std::byte*>(input) + own.begin * element;
      // In place: nobody else reads this slice of the own slot before the next barrier.
      reduce_into(op, inputs, slot(me(), use) + own.begin * element, own.size());
      MUSTER_OK(meet(op));
      for (std::size_t i = 0; i < members_.size(); ++i) {
        const Slice slice = slice_of(count, element, static_cast<int>(i), world_size());
        std::memcpy(data + slice.begin * element, slot(i, use) + slice.begin * element,
                    slice.size() * element);
      }
    }
    return {};
  }

  /// Texts of up to a slot's size through the slots. Needs an operation that everybody has agreed on.
  Result<std::vector<std::string>> exchange_texts(const OpContext& op, const std::string& mine) {
    const std::uint64_t use = slot_use_++;
    const std::size_t size = std::min(mine.size(), layout_.slot_bytes - sizeof(std::uint64_t));
    const std::uint64_t length = size;
    std::memcpy(slot(me(), use), &length, sizeof length);
    std::memcpy(slot(me(), use) + sizeof length, mine.data(), size);
    MUSTER_OK(meet(op));
    std::vector<std::string> out;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      std::uint64_t there = 0;
      std::memcpy(&there, slot(i, use), sizeof there);
      out.emplace_back(reinterpret_cast<const char*>(slot(i, use) + sizeof there),
                       std::min<std::size_t>(there, layout_.slot_bytes - sizeof there));
    }
    return out;
  }

  const std::vector<int> ranks_;
  const SegmentMaker make_segment_;
  const std::shared_ptr<ShmSegment> control_;
  const ShmLayout layout_;
  ShmHeader& header_;
  const std::span<ShmMember> members_;
  ShmBarrier barrier_;
  std::vector<Arena> arenas_;
  std::uint64_t slot_use_ = 0;  // the same on every member
};

}  // namespace

Result<std::unique_ptr<CpuGroup>> make_shm_group(const ShmGroupOptions& options,
                                                 const TextExchange& exchange) {
  const Instant deadline = SteadyClock::now() + options.timeout;
  const ShmLayout layout{.members = options.ranks.size(), .slot_bytes = options.slot_bytes};
  const auto me = static_cast<std::size_t>(options.me);
  // Member 0 also reserves the header.
  const SegmentRequest request{.size = layout.size(),
                               .own_begin = me == 0 ? 0 : layout.slot(me, 0),
                               .own_end = layout.slot(me, 0) + 2 * layout.slot_bytes,
                               .member = options.me};
  auto segment = options.make_segment(request, exchange);
  if (!segment) return fail(std::move(segment).error());
  auto group = std::make_unique<ShmGroup>(options, *std::move(segment), layout);
  MUSTER_OK(group->introduce(deadline));
  return group;
}

}  // namespace muster::groups
