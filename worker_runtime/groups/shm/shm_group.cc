// SPDX-License-Identifier: Apache-2.0
// Rules that make one barrier enough where there is one:
// - A slot is used in turns of two. Use u+2 overwrites use u's slot, after the barrier of use u+1, to which a
//   member comes only when it has finished reading use u.
// - An announcement is overwritten by the next but one, for the same reason.
// - A transfer goes through the two halves of the sender's next slot, which nobody reads any more: the use
//   before the last one ended with the last barrier. The sender returns when the receiver has everything.
// - Both sides of a transfer say what they call, and each reads the other's words before it touches data. A
//   member overwrites its words with those of its next transfer, when the other has read them.
#include "worker_runtime/groups/shm/shm_group.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <linux/futex.h>
#include <new>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/groups/base/reduce_kernels.h"

namespace muster::groups {
namespace {

// What lies where in the control segment: header, one line per member, staging slots. Plain memory that
// starts as zeros; every word that two processes touch at once is a lock-free atomic.

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                  std::atomic<std::uint64_t>::is_always_lock_free,
              "atomics in shared memory must not use a lock");

/// The first failure of any member, told to all.
struct SharedFailure {
  std::atomic<std::uint32_t> taken;  // 1: a member is writing or has written what follows
  std::uint32_t code;
  char text[1000];  // NUL-terminated
};

struct ShmHeader {
  /// Barriers completed, times 2; the lowest bit is set for ever once `failure` is written. Sleepers wait on
  /// it.
  alignas(128) std::atomic<std::uint32_t> phase;
  alignas(128) std::atomic<std::uint32_t> arrived;   // members in the current barrier
  alignas(128) std::atomic<std::uint32_t> sleepers;  // members that need a wake-up call
  alignas(128) SharedFailure failure;
};

/// Where a registered buffer lies in every member's part of an arena.
struct ArenaPlace {
  std::uint32_t arena = 0;  // 1 + its index; 0: not registered
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;  // bytes from the member's part
};

struct Announcement {
  OpDescriptor descriptor;
  ArenaPlace place;
};

/// One member's words, away from everybody else's cache lines.
struct ShmMember {
  alignas(128) std::atomic<std::uint32_t> arrived;  // the phase this member last arrived for
  std::atomic<std::uint32_t> left;                  // 1: its group is destroyed
  std::atomic<std::uint32_t> cpu;                   // on which it last arrived
  std::uint32_t pid;
  std::uint64_t pid_namespace;                      // 0: unknown
  cpu_set_t cpus;                                   // where it may run
  alignas(128) std::atomic<std::uint32_t> changes;  // counts what this member stores in the next four words
  std::atomic<std::uint32_t> sleepers;              // others that wait for a change
  std::atomic<std::uint64_t> call;    // 1 + the other member, << 32, + the number of transfers with it before
  std::atomic<std::uint64_t> pieces;  // that this member has put into its slot or taken from another's
  OpDescriptor transfer;              // these three are of `call`, and stored before it
  std::uint64_t first_piece;
  std::uint64_t slot_use;
  /// By turns: a member may be one announcement ahead of another that still reads the last one.
  alignas(128) Announcement announcements[2];
};

struct ShmLayout {
  std::size_t members = 0;
  std::size_t slot_bytes = 0;  // of one staging slot; each member has two

  [[nodiscard]] std::size_t slots_begin() const {
    return (sizeof(ShmHeader) + members * sizeof(ShmMember) + 4095) / 4096 * 4096;
  }
  [[nodiscard]] std::size_t size() const { return slots_begin() + members * 2 * slot_bytes; }
  [[nodiscard]] std::size_t slot(std::size_t member, std::uint64_t use) const {
    return slots_begin() + (member * 2 + use % 2) * slot_bytes;
  }
};

constexpr std::uint32_t kFailedBit = 1;  // of ShmHeader::phase

constexpr Millis kLivenessInterval{50};
// Who waits has a core of its own and nothing else to do, a wake-up takes about 50 us on a virtual machine,
// and steps of two ranks differ by more. Each of two ranks (GarmentClassifier, batch 64) has 0.83 of the
// speed of one with 50 us, 0.86 with 200, 0.91 with 500 and more; two such jobs on the same two cores lose
// nothing by it.
constexpr std::chrono::microseconds kSpin{1000};

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wait_shared(std::atomic<std::uint32_t>& word, std::uint32_t expected, Millis timeout) {
  const timespec relative{static_cast<time_t>(timeout.count() / 1000),
                          static_cast<long>(timeout.count() % 1000 * 1000000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &relative, nullptr, 0);
}

void futex_wake_all_shared(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// ShmBarrier: the meeting point of an shm group's members, and where their failures are told.
/// arrive_and_wait() spins for a moment, then sleeps on a futex that processes share (std::atomic::wait is
/// private to a process in libstdc++). What was written before arriving is seen by everybody after the wait.
/// While it sleeps it looks every 50 ms for members that ended; a failure or the last arrival wakes it at
/// once. One thread at a time; tell_failure() from any thread.
class ShmBarrier {
 public:
  /// `header` and `members` lie in the shared segment, which outlives this. `me` indexes `members`.
  ShmBarrier(ShmHeader& header, std::span<ShmMember> members, const std::vector<int>& ranks, int me)
      : header_(header), members_(members), ranks_(ranks), me_(static_cast<std::size_t>(me)) {}

  /// After the first barrier, when every member's line is filled in: opens the pidfds and decides about
  /// spinning.
  void watch_members() {
    cpu_set_t all;
    CPU_ZERO(&all);
    const ShmMember& mine = members_[me_];
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const ShmMember& other = members_[i];
      CPU_OR(&all, &all, &other.cpus);
      const bool visible = other.pid_namespace != 0 && other.pid_namespace == mine.pid_namespace;
      if (visible && other.pid != mine.pid) watch_.add(static_cast<int>(i), static_cast<pid_t>(other.pid));
    }
    // The union, because a launcher may have bound each member to a core of its own.
    spins_ = static_cast<std::size_t>(CPU_COUNT(&all)) >= members_.size();
  }

  /// kPeerGone, kTimeout with the ranks concerned, or the failure that another member told.
  [[nodiscard]] Result<void> arrive_and_wait(Instant deadline, bool may_spin) {
    if (has_failed()) return fail(told_failure());
    const std::uint32_t target = phase_ + 2;
    const auto passed = [&](std::uint32_t word) { return (word & ~kFailedBit) == target; };
    if (header_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == members_.size()) {
      if (spins_)
        members_[me_].cpu.store(static_cast<std::uint32_t>(::sched_getcpu()), std::memory_order_relaxed);
      members_[me_].arrived.store(target, std::memory_order_release);
      // Nobody arrives again before the phase moves on.
      header_.arrived.store(0, std::memory_order_relaxed);
      // Sequentially consistent, as the sleeper's two steps are: one of the two sees the other.
      header_.phase.fetch_add(2, std::memory_order_seq_cst);
      if (header_.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all_shared(header_.phase);
      phase_ = target;
      return {};
    }
    members_[me_].arrived.store(target, std::memory_order_release);
    MUSTER_OK(wait(
        {header_.phase, header_.sleepers}, deadline, may_spin,
        [&] { return passed(header_.phase.load(std::memory_order_acquire)); },
        [&](std::size_t i) { return members_[i].arrived.load(std::memory_order_acquire) != target; }));
    phase_ = target;
    return {};
  }

  /// Waits until `ready()` holds of what `peer` stores; it counts changes() after each store.
  template <class Ready>
  [[nodiscard]] Result<void> wait_for(std::size_t peer, Instant deadline, bool may_spin, Ready ready) {
    return wait({members_[peer].changes, members_[peer].sleepers}, deadline, may_spin, ready,
                [&](std::size_t i) { return i == peer && !ready(); });
  }

  void tell_change() {
    ShmMember& mine = members_[me_];
    // Sequentially consistent, as in arrive_and_wait().
    mine.changes.fetch_add(1, std::memory_order_seq_cst);
    if (mine.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all_shared(mine.changes);
  }

  /// `peer` is in a collective that this member has not come to. (Who was not the last at a barrier may say
  /// so only after the last has left it: then its word is one behind.)
  [[nodiscard]] bool is_ahead(std::size_t peer) const {
    return members_[peer].arrived.load(std::memory_order_acquire) == phase_ + 2;
  }

  /// Sets the failure that every member reports from now on, unless there is one.
  void tell_failure(const Error& error) {
    std::uint32_t free = 0;
    if (!header_.failure.taken.compare_exchange_strong(free, 1, std::memory_order_acq_rel)) return;
    header_.failure.code = static_cast<std::uint32_t>(error.code);
    const std::size_t n = std::min(error.message.size(), sizeof header_.failure.text - 1);
    std::memcpy(header_.failure.text, error.message.data(), n);
    header_.failure.text[n] = '\0';
    header_.phase.fetch_or(kFailedBit, std::memory_order_seq_cst);
    futex_wake_all_shared(header_.phase);
  }

  /// Others that wait for this member learn that it does not come.
  void leave() {
    members_[me_].left.store(1, std::memory_order_release);
    futex_wake_all_shared(header_.phase);
  }

 private:
  [[nodiscard]] bool has_failed() const {
    return (header_.phase.load(std::memory_order_acquire) & kFailedBit) != 0;
  }

  struct Words {
    std::atomic<std::uint32_t>&changing, &sleepers;
  };
  /// Spins, then sleeps. `ready()` holds only after a change; `awaits(i)`: while member i has not done its
  /// part.
  template <class Ready, class Awaits>
  [[nodiscard]] Result<void> wait(Words words, Instant deadline, bool may_spin, Ready ready, Awaits awaits) {
    if (may_spin && spins_) {
      const auto cpu = static_cast<std::uint32_t>(::sched_getcpu());
      members_[me_].cpu.store(cpu, std::memory_order_relaxed);
      const auto is_here = [&](std::size_t i) {
        return members_[i].cpu.load(std::memory_order_relaxed) == cpu;
      };
      const auto stop = SteadyClock::now() + kSpin;
      do {
        for (int i = 0; i < 32; ++i) {
          if (ready()) return {};
          pause_core();
        }
        // The scheduler may have put a member that is missing on this very core, where it cannot run while we
        // spin (seen on a loaded machine: every barrier took the whole spin).
      } while (SteadyClock::now() < stop && names_of(is_here, awaits).empty());
    }
    while (true) {
      words.sleepers.fetch_add(1, std::memory_order_seq_cst);
      const std::uint32_t word = words.changing.load(std::memory_order_seq_cst);
      const Millis left = std::min(time_left(deadline, SteadyClock::now()), kLivenessInterval);
      if (!ready() && !has_failed() && left.count() > 0) futex_wait_shared(words.changing, word, left);
      words.sleepers.fetch_sub(1, std::memory_order_relaxed);

      if (ready()) return {};
      if (has_failed()) return fail(told_failure());
      const auto has_left = [&](std::size_t i) {
        return members_[i].left.load(std::memory_order_acquire) != 0;
      };
      if (const std::string gone = names_of(has_left, awaits); !gone.empty())
        return fail(ErrorCode::kPeerGone, "{} destroyed its group without calling this operation", gone);
      const std::vector<int> ended = watch_.ended();
      const auto is_ended = [&](std::size_t i) {
        return std::count(ended.begin(), ended.end(), static_cast<int>(i)) != 0;
      };
      if (const std::string gone = names_of(is_ended, awaits); !gone.empty()) {
        if (ready()) return {};  // it may have done its part just before it ended
        return fail(ErrorCode::kPeerGone, "{} died; see its own output for why", gone);
      }
      if (SteadyClock::now() >= deadline) {
        const std::string late = names_of([](std::size_t) { return true; }, awaits);
        return fail(ErrorCode::kTimeout,
                    "timed out waiting for {}; is it stopped, or still busy with something else?",
                    (late.empty() ? "the others" : late));
      }
    }
  }

  [[nodiscard]] Error told_failure() const {
    const SharedFailure& failure = header_.failure;
    const std::size_t n = ::strnlen(failure.text, sizeof failure.text);
    return Error{static_cast<ErrorCode>(failure.code),
                 "broken by another rank: " + std::string(failure.text, n)};
  }

  /// Members of whom both hold.
  template <class Which, class Awaits>
  std::string names_of(Which which, Awaits awaits) const {
    std::string out;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      // `which` first: a member that left, or ended, did its part before that if it did at all.
      if (i == me_ || !which(i) || !awaits(i)) continue;
      out += fmt::format("{}rank {} (pid {})", out.empty() ? "" : ", ", ranks_[i], members_[i].pid);
    }
    return out;
  }

  ShmHeader& header_;
  std::span<ShmMember> members_;
  const std::vector<int>& ranks_;
  std::size_t me_;
  std::uint32_t phase_ = 0;  // barriers this member has passed, times 2
  bool spins_ = false;       // there is a core for every member
  PeerWatch watch_;
};

/// Up to here every rank reduces everything itself, behind one barrier. Above it a second barrier costs less
/// than what is read twice: two ranks take 0.8 us for 16 KB of registered memory, 2.9 us by this way.
constexpr std::size_t kSmallBytes = std::size_t{4} << 10;

struct Arena {
  ShmSegment segment;
  std::size_t part_bytes;  // of each member
};

class ShmGroup final : public CpuGroup {
 public:
  ShmGroup(const ShmGroupOptions& options, ShmSegment control, ShmLayout layout)
      : CpuGroup(options.me, static_cast<int>(options.ranks.size()), options.timeout),
        ranks_(options.ranks),
        make_segment_(options.make_segment),
        control_(std::move(control)),
        layout_(layout),
        header_(*std::launder(reinterpret_cast<ShmHeader*>(control_.get()))),
        members_(std::launder(reinterpret_cast<ShmMember*>(control_.get() + sizeof(ShmHeader))),
                 ranks_.size()),
        barrier_(header_, members_, ranks_, options.me),
        transfers_(ranks_.size()) {}

  ~ShmGroup() override {
    stop();
    if (!is_forked()) barrier_.leave();
  }

  std::string_view backend() const override { return "shm"; }

  /// Fills in this member's line and meets the others twice: before and after the pidfds are opened.
  Result<void> introduce(Instant deadline) {
    ShmMember& mine = members_[me()];
    mine.pid = static_cast<std::uint32_t>(::getpid());
    mine.pid_namespace = pid_namespace_inode();
    if (::sched_getaffinity(0, sizeof mine.cpus, &mine.cpus) != 0) CPU_ZERO(&mine.cpus);
    MUSTER_OK(barrier_.arrive_and_wait(deadline, false));
    barrier_.watch_members();
    return barrier_.arrive_and_wait(deadline, false);
  }

  Result<void> run_transfer(const OpContext& op, const Transfer& t) override {
    const auto peer = static_cast<std::size_t>(t.peer);
    ShmMember& mine = members_[me()];
    const ShmMember& theirs = members_[peer];
    const auto call_with = [&](std::size_t member) {
      return (std::uint64_t{member} + 1) << 32 | transfers_[peer];
    };
    mine.transfer = op.descriptor;
    mine.first_piece = mine.pieces.load(std::memory_order_relaxed);
    mine.slot_use = slot_use_;
    mine.call.store(call_with(peer), std::memory_order_release);
    barrier_.tell_change();
    const auto has_called = [&] { return theirs.call.load(std::memory_order_acquire) == call_with(me()); };
    MUSTER_OK(barrier_.wait_for(peer, op.deadline, op.may_spin,
                                [&] { return has_called() || barrier_.is_ahead(peer); }));
    // Else it has announced one collective more than this member.
    const OpDescriptor& called = has_called() ? theirs.transfer : announcement(peer, 1).descriptor;
    if (auto text = find_mismatch(op.descriptor, ranks_[me()], called, ranks_[peer]))
      return fail(ErrorCode::kMismatch, *std::move(text));
    ++transfers_[peer];

    const std::size_t half = layout_.slot_bytes / 2;
    const std::size_t pieces = std::max<std::size_t>((t.size + half - 1) / half, 1);
    std::byte* const through = t.sends ? slot(me(), slot_use_) : slot(peer, theirs.slot_use);
    const std::uint64_t first = theirs.first_piece;
    const auto wait_for = [&](std::size_t count) {
      return barrier_.wait_for(peer, op.deadline, op.may_spin, [&] {
        return theirs.pieces.load(std::memory_order_acquire) - first >= count;
      });
    };
    for (std::size_t i = 0; i < pieces; ++i) {
      // The sender is at most two pieces ahead.
      if (!t.sends || i >= 2) MUSTER_OK(wait_for(t.sends ? i - 1 : i + 1));
      std::byte* const data = t.data + i * half;
      std::byte* const place = through + i % 2 * half;
      const std::size_t size = std::min(half, t.size - i * half);
      if (size != 0) std::memcpy(t.sends ? place : data, t.sends ? data : place, size);
      mine.pieces.fetch_add(1, std::memory_order_release);
      barrier_.tell_change();
    }
    return t.sends ? wait_for(pieces) : Result<void>();
  }

 protected:
  Result<void> run_barrier(const OpContext& op) override {
    announce(op, {});
    return meet_first(op);
  }

  Result<void> run_all_reduce(const OpContext& op, Buffer buffer) override {
    if (buffer.size_bytes() <= kSmallBytes) return all_reduce_small(op, buffer);
    announce(op, place_of(buffer.data, buffer.size_bytes()));
    MUSTER_OK(meet_first(op));
    if (const auto places = everybodys_places(buffer.size_bytes()))
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
      if (const auto places = everybodys_places(input.size_bytes())) {
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
      reduce_into(op, slots(use, me() * stride), out + begin, size / size_of(output.dtype));
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
      std::byte* own = segment->get() + part * me();
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
  std::byte* slot(std::size_t member, std::uint64_t use) const {
    return control_.get() + layout_.slot(member, use);
  }
  /// Everybody's, from a byte on.
  std::vector<const void*> slots(std::uint64_t use, std::size_t begin = 0) const {
    std::vector<const void*> out(members_.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = slot(i, use) + begin;
    return out;
  }

  /// The last one, or that `later` ones after it.
  Announcement& announcement(std::size_t member, std::uint64_t later = 0) const {
    return members_[member].announcements[(announced_ + later) % 2];
  }
  void announce(const OpContext& op, ArenaPlace place) {
    ++announced_;
    announcement(me()) = {op.descriptor, place};
  }

  Result<void> meet(const OpContext& op) { return barrier_.arrive_and_wait(op.deadline, op.may_spin); }

  /// The first barrier of an operation, after which the announcements are compared.
  Result<void> meet_first(const OpContext& op) {
    MUSTER_OK(meet(op));
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (announcement(i).descriptor != op.descriptor) [[unlikely]]
        return disagreement();
    return {};
  }

  Result<void> disagreement() const {
    std::vector<OpDescriptor> all;
    all.reserve(members_.size());
    for (std::size_t i = 0; i < members_.size(); ++i) all.push_back(announcement(i).descriptor);
    return fail(ErrorCode::kMismatch, find_mismatch(all, ranks_).value_or("ranks disagree"));
  }

  ArenaPlace place_of(const void* data, std::size_t size) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (std::size_t i = 0; i < arenas_.size(); ++i) {
      const auto begin =
          reinterpret_cast<std::uintptr_t>(arenas_[i].segment.get()) + arenas_[i].part_bytes * me();
      if (address >= begin && address + size <= begin + arenas_[i].part_bytes)
        return {.arena = static_cast<std::uint32_t>(i + 1), .offset = address - begin};
    }
    return {};
  }

  /// Where this operation's buffer of every member is in this process; nothing unless all are in arenas.
  std::optional<std::vector<void*>> everybodys_places(std::size_t size) const {
    std::vector<void*> out(members_.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const ArenaPlace place = announcement(i).place;
      if (place.arena == 0 || place.arena > arenas_.size()) return std::nullopt;
      const Arena& arena = arenas_[place.arena - 1];
      if (place.offset > arena.part_bytes || size > arena.part_bytes - place.offset) return std::nullopt;
      out[i] = arena.segment.get() + arena.part_bytes * i + place.offset;
    }
    return out;
  }

  void reduce_into(const OpContext& op, std::span<const void* const> inputs, void* output,
                   std::size_t count) const {
    void* outputs[] = {output};
    groups::reduce(inputs, outputs, count, op.descriptor.dtype, op.descriptor.reduce,
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
      if (needs_result(op, me())) reduce_into(op, slots(use), buffer.data, buffer.count);
    };
    return staged(op, buffer.size_bytes(), kSmallBytes, copy_in, copy_out);
  }

  Result<void> all_reduce_in_place(const OpContext& op, Buffer buffer, std::vector<void*> places) {
    const std::size_t element = size_of(buffer.dtype);
    const Slice own = slice_of(buffer.count, element, rank(), world_size());
    for (void*& place : places) place = static_cast<std::byte*>(place) + own.begin * element;
    const std::vector<const void*> inputs(places.begin(), places.end());
    if (op.descriptor.root >= 0) places = {places[static_cast<std::size_t>(op.descriptor.root)]};
    groups::reduce(inputs, places, own.size(), buffer.dtype, op.descriptor.reduce,
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
      const std::size_t at = own.begin * element;
      // In place: nobody else reads this slice of the own slot before the next barrier.
      reduce_into(op, slots(use, at), slot(me(), use) + at, own.size());
      MUSTER_OK(meet(op));
      for (std::size_t i = 0; needs_result(op, me()) && i < members_.size(); ++i) {
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
  const ShmSegment control_;
  const ShmLayout layout_;
  ShmHeader& header_;
  const std::span<ShmMember> members_;
  ShmBarrier barrier_;
  std::vector<Arena> arenas_;
  // The same on every member, at the same collective.
  std::uint64_t slot_use_ = 0;
  std::uint64_t announced_ = 0;
  std::vector<std::uint32_t> transfers_;  // with each member, in either direction
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
  MUSTER_TRY(ShmSegment segment, options.make_segment(request, exchange));
  auto group = std::make_unique<ShmGroup>(options, std::move(segment), layout);
  MUSTER_OK(group->introduce(deadline));
  return group;
}

}  // namespace muster::groups
