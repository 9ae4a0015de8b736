// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/shm/shm_barrier.h"

#include <algorithm>
#include <cstring>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <fmt/format.h>

namespace muster::groups {
namespace {

constexpr std::uint32_t kFailedBit = 1;
constexpr Millis kLivenessInterval{50};
// A sleep and a wake-up cost about 50 us between them on a virtual machine, so it pays to spin for that long.
constexpr std::chrono::microseconds kSpin{50};

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

}  // namespace

void ShmBarrier::watch_members() {
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

Result<void> ShmBarrier::arrive_and_wait(Instant deadline, bool may_spin) {
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
  if (may_spin && spins_) {
    const auto cpu = static_cast<std::uint32_t>(::sched_getcpu());
    members_[me_].cpu.store(cpu, std::memory_order_relaxed);
    const auto stop = SteadyClock::now() + kSpin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (passed(header_.phase.load(std::memory_order_acquire))) {
          phase_ = target;
          return {};
        }
        pause_core();
      }
      // The scheduler may have put a member that is missing on this very core, where it cannot run while we
      // spin (seen on a loaded machine: every barrier took the whole spin).
    } while (SteadyClock::now() < stop && !shares_core(target, cpu));
  }
  MUSTER_OK(sleep_until(target, deadline));
  phase_ = target;
  return {};
}

bool ShmBarrier::shares_core(std::uint32_t target, std::uint32_t cpu) const {
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (i != me_ && members_[i].cpu.load(std::memory_order_relaxed) == cpu &&
        members_[i].arrived.load(std::memory_order_relaxed) != target)
      return true;
  return false;
}

Result<void> ShmBarrier::sleep_until(std::uint32_t target, Instant deadline) {
  while (true) {
    header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t word = header_.phase.load(std::memory_order_seq_cst);
    const bool wait = (word & ~kFailedBit) != target && (word & kFailedBit) == 0;
    const Millis left = std::min(time_left(deadline, SteadyClock::now()), kLivenessInterval);
    if (wait && left.count() > 0) futex_wait_shared(header_.phase, word, left);
    header_.sleepers.fetch_sub(1, std::memory_order_relaxed);

    const std::uint32_t now = header_.phase.load(std::memory_order_acquire);
    if ((now & ~kFailedBit) == target) return {};
    if ((now & kFailedBit) != 0) return fail(told_failure());
    const std::vector<int> ended = watch_.ended();
    const auto is_ended = [&](std::size_t i) {
      return std::count(ended.begin(), ended.end(), static_cast<int>(i)) != 0;
    };
    if (const std::string gone = missing_text(target, is_ended); !gone.empty()) {
      // It may have been the last to arrive, just before it ended.
      if ((header_.phase.load(std::memory_order_acquire) & ~kFailedBit) == target) return {};
      return fail(ErrorCode::kPeerGone, gone + " died; see its own output for why");
    }
    const auto has_left = [&](std::size_t i) {
      return members_[i].left.load(std::memory_order_acquire) != 0;
    };
    if (const std::string gone = missing_text(target, has_left); !gone.empty())
      return fail(ErrorCode::kPeerGone, gone + " destroyed its group without calling this operation");
    if (SteadyClock::now() >= deadline) {
      const std::string late = missing_text(target, [](std::size_t) { return true; });
      return fail(ErrorCode::kTimeout, "timed out waiting for " + (late.empty() ? "the others" : late) +
                                           "; is it stopped, or still busy with something else?");
    }
  }
}

template <class Which>
std::string ShmBarrier::missing_text(std::uint32_t target, Which which) const {
  std::string out;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    // `which` first: a member that left, or ended, arrived before that if it did at all.
    if (i == me_ || !which(i) || members_[i].arrived.load(std::memory_order_acquire) == target) continue;
    out += fmt::format("{}rank {} (pid {})", out.empty() ? "" : ", ", members_[i].rank, members_[i].pid);
  }
  return out;
}

void ShmBarrier::tell_failure(const Error& error) {
  std::uint32_t free = 0;
  if (!header_.failure.taken.compare_exchange_strong(free, 1, std::memory_order_acq_rel)) return;
  header_.failure.code = static_cast<std::uint32_t>(error.code);
  const std::size_t n = std::min(error.message.size(), sizeof header_.failure.text - 1);
  std::memcpy(header_.failure.text, error.message.data(), n);
  header_.failure.text[n] = '\0';
  header_.phase.fetch_or(kFailedBit, std::memory_order_seq_cst);
  futex_wake_all_shared(header_.phase);
}

Error ShmBarrier::told_failure() const {
  const SharedFailure& failure = header_.failure;
  const std::size_t n = ::strnlen(failure.text, sizeof failure.text);
  return Error{static_cast<ErrorCode>(failure.code),
               "broken by another rank: " + std::string(failure.text, n)};
}

void ShmBarrier::leave() {
  members_[me_].left.store(1, std::memory_order_release);
  futex_wake_all_shared(header_.phase);
}

}  // namespace muster::groups
