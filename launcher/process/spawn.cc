// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/spawn.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <muster/check.h>

#include "launcher/process/process_stat.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

/// System calls that touch nothing but registers, for a child that shares its parent's memory, where libc's
/// errno is the parent's too. Returns the result, or minus the error number. Source: syscall(2).
__attribute__((always_inline)) inline long raw_syscall(long number, long a = 0, long b = 0, long c = 0,
                                                       long d = 0, long e = 0) {
#if defined(__x86_64__)
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  return x0;
#else
#error "muster knows x86-64 and AArch64 only"
#endif
}

/// clone3 for a child that shares its parent's memory and runs `body` on a stack of its own: glibc has no
/// wrapper for it, and only clone3 can start a child within a control group. Returns the child's pid, or
/// minus the error number. `body` must not return. Source: clone(2), glibc's clone3.S.
long clone_into(clone_args* arguments, int (*body)(void*), void* argument) {
#if defined(__x86_64__)
  register int (*r12)(void*) __asm__("r12") = body;
  register void* r13 __asm__("r13") = argument;
  long result;
  __asm__ volatile(
      "syscall\n\ttestq %%rax, %%rax\n\tjnz 1f\n\txorl %%ebp, %%ebp\n\tmovq %%r13, %%rdi\n\tcallq "
      "*%%r12\n\thlt\n"
      "1:"
      : "=a"(result)
      : "0"(static_cast<long>(SYS_clone3)), "D"(arguments), "S"(sizeof *arguments), "r"(r12), "r"(r13)
      : "rcx", "r11", "memory", "cc");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = SYS_clone3;
  register long x0 __asm__("x0") = reinterpret_cast<long>(arguments);
  register long x1 __asm__("x1") = sizeof *arguments;
  register int (*x19)(void*) __asm__("x19") = body;
  register void* x20 __asm__("x20") = argument;
  __asm__ volatile(
      "svc 0\n\tcbnz x0, 1f\n\tmov x29, xzr\n\tmov x0, x20\n\tblr x19\n\tbrk 1\n"
      "1:"
      : "+r"(x0)
      : "r"(x8), "r"(x1), "r"(x19), "r"(x20)
      : "memory", "cc");
  return x0;
#else
#error "muster knows x86-64 and AArch64 only"
#endif
}

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kGuardBytes = 4096;
constexpr Millis kSpawnReapTimeout{1000};  // for a child that could not execute

/// The kernel's own layout: glibc's sigaction() is intercepted by sanitizers, which keep tables in the shared
/// memory.
struct KernelSigaction {
  void* handler;
  unsigned long flags;
  void* restorer;
  std::uint64_t mask;
};

constexpr char kExecute[] = "execute";

struct ChildPlan {
  SpawnRequest request;
  const rlimit* descriptor_limit;
  pid_t parent;
  const int* reset;
  std::size_t reset_count;
  // Written by the child, read by the parent after the child has executed or ended.
  const char* volatile failed_call;  // nullptr: none
  volatile int failed_errno;
};

#define MUSTER_NO_SANITIZE __attribute__((no_sanitize("address", "undefined", "thread")))

template <class T>
MUSTER_NO_SANITIZE inline long word(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

[[noreturn]] MUSTER_NO_SANITIZE void give_up(ChildPlan* plan, const char* call, long result) {
  plan->failed_errno = static_cast<int>(-result);
  plan->failed_call = call;
  raw_syscall(SYS_exit_group, 127);
  __builtin_unreachable();
}

/// Between clone and exec: system calls on prepared memory, nothing else.
MUSTER_NO_SANITIZE int run_child(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  const SpawnRequest& request = plan->request;
  long result = raw_syscall(SYS_setsid);
  if (result < 0) give_up(plan, "setsid", result);
  result = raw_syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
  if (result < 0) give_up(plan, "prctl(PR_SET_PDEATHSIG)", result);
  // The parent may have died before the line above took effect.
  if (raw_syscall(SYS_getppid) != plan->parent) give_up(plan, "the launcher died while starting", -ESRCH);

  // Where Yama lets ancestors trace only: the tools that show stacks are the parent's other children.
  raw_syscall(SYS_prctl, PR_SET_PTRACER, plan->parent);
  KernelSigaction action{};
  for (std::size_t i = 0; i < plan->reset_count; ++i)
    raw_syscall(SYS_rt_sigaction, plan->reset[i], word(&action), 0, sizeof action.mask);
  if (request.stdout_fd >= 0) result = raw_syscall(SYS_dup3, request.stdout_fd, 1, 0);
  if (result >= 0 && request.stderr_fd >= 0) result = raw_syscall(SYS_dup3, request.stderr_fd, 2, 0);
  if (result < 0) give_up(plan, "dup2", result);
  // Kernels before 5.11 cannot mark the range; muster's own descriptors are close-on-exec in any case.
  if (raw_syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC) < 0) raw_syscall(SYS_close_range, 3, ~0U, 0);
  if (plan->descriptor_limit != nullptr)
    raw_syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, word(plan->descriptor_limit), 0);
  const Binding* const binding = request.binding;
  if (binding != nullptr && !binding->cpus.empty()) {
    result = raw_syscall(SYS_sched_setaffinity, 0, binding->cpus.size() * sizeof(long),
                         word(binding->cpus.data()));
    if (result < 0) give_up(plan, "sched_setaffinity", result);
  }
  if (binding != nullptr && !binding->memory_nodes.empty()) {
    // The kernel reads one bit less than it is told.
    result = raw_syscall(SYS_set_mempolicy, MPOL_PREFERRED, word(binding->memory_nodes.data()),
                         binding->memory_nodes.size() * 8 * sizeof(long) + 1);
    if (result < 0) give_up(plan, "set_mempolicy", result);
  }
  const std::uint64_t none = 0;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, word(&none), 0, sizeof none);
  result = raw_syscall(SYS_execve, word(request.path), word(request.arguments), word(request.environment));
  give_up(plan, kExecute, result);
}

/// Signals whose disposition exec would not reset (ignored) or that must not run a handler in shared memory
/// (handled).
std::vector<int> signals_to_reset() {
  std::vector<int> out;
  for (int signal = 1; signal < 65; ++signal) {
    KernelSigaction current{};
    if (::syscall(SYS_rt_sigaction, signal, nullptr, &current, sizeof current.mask) == 0 &&
        current.handler != nullptr)
      out.push_back(signal);
  }
  return out;
}

}  // namespace

Error exec_error(const std::string& path, int error_number) {
  Error out = errno_error("execute " + path, error_number);
  constexpr std::array kRefusals{ENOEXEC, EACCES, E2BIG, ETXTBSY, ELOOP, EISDIR, EPERM};
  if (std::ranges::find(kRefusals, error_number) != kRefusals.end()) out.code = ErrorCode::kUnsupported;
  if (error_number == ENOENT && ::access(path.c_str(), F_OK) == 0)
    out.message +=
        "; the file exists, but its loader, or the interpreter that its first line names, does not; does "
        "that line end with CR LF?";
  if (error_number == ENOEXEC)
    out.message +=
        "; it is empty, for another architecture, or a script without a first line such as #!/bin/sh";
  if (error_number == EACCES)
    out.message += "; is its file system mounted noexec, or its interpreter not executable?";
  if (error_number == E2BIG)
    out.message +=
        "; an argument or a variable is larger than 128 KiB, or all are larger than ulimit -s permits";
  return out;
}

struct Spawner::Slot {
  Slot()
      : stack(::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
                     -1, 0)) {
    MUSTER_CHECK(stack != MAP_FAILED, "no memory for a 64 KiB stack");
    ::mprotect(stack, kGuardBytes, PROT_NONE);
  }
  ~Slot() { ::munmap(stack, kStackBytes); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  /// Until the kernel has cleared the word: the child no longer uses our memory. False: not by the deadline.
  [[nodiscard]] bool wait(Instant deadline) const {
    for (int seen = in_memory.load(); seen != 0; seen = in_memory.load()) {
      const auto left = deadline - SteadyClock::now();
      if (left <= left.zero()) return false;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec limit{static_cast<std::time_t>(seconds.count()), (left - seconds).count()};
      ::syscall(SYS_futex, &in_memory, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    return true;
  }

  void* stack;  // with a guard page at its low end
  ChildPlan plan{};
  Instant begun{};
  std::atomic<int> in_memory{0};
};
static_assert(sizeof(std::atomic<int>) == sizeof(int));

// ThreadSanitizer's clone() leaves what the child is to run on the stack of the parent, which does not wait.
#ifdef __SANITIZE_THREAD__
constexpr bool kHasClone = false;
#else
constexpr bool kHasClone = true;
#endif

/// clone(2)'s result and errno.
int Spawner::start_child(Slot& slot, int cgroup_fd, int& pidfd) {
  constexpr unsigned kFlags = CLONE_VM | CLONE_PIDFD | CLONE_CHILD_CLEARTID;
  if (cgroup_fd < 0 && kHasClone)
    return ::clone(run_child, static_cast<char*>(slot.stack) + kStackBytes, kFlags | SIGCHLD, &slot.plan,
                   &pidfd, nullptr, &slot.in_memory);
  clone_args arguments{};
  arguments.flags = kFlags | (cgroup_fd < 0 ? 0 : CLONE_INTO_CGROUP);
  arguments.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  arguments.child_tid = reinterpret_cast<std::uintptr_t>(&slot.in_memory);
  arguments.exit_signal = SIGCHLD;
  arguments.stack = reinterpret_cast<std::uintptr_t>(slot.stack);
  arguments.stack_size = kStackBytes;
  arguments.cgroup = static_cast<std::uint64_t>(std::max(cgroup_fd, 0));
  const long result = clone_into(&arguments, run_child, &slot.plan);
  if (result >= 0) return static_cast<int>(result);
  errno = static_cast<int>(-result);
  return -1;
}

Spawner::Spawner(std::optional<rlimit> descriptor_limit, Millis exec_timeout)
    : descriptor_limit_(descriptor_limit), exec_timeout_(exec_timeout), reset_(signals_to_reset()) {}

Spawner::~Spawner() {
  for (auto& slot : slots_)
    if (slot && !slot->wait(slot->begun + exec_timeout_)) abandon(slot);
}

/// A child that hangs in execve still stands on this stack, and reads the request: neither is used again.
void Spawner::abandon(std::unique_ptr<Slot>& slot) {
  static auto* const kept = new std::vector<std::unique_ptr<Slot>>;
  kept->push_back(std::move(slot));
}

Result<Spawned> Spawner::begin(std::size_t slot_index, const SpawnRequest& request) {
  auto& owner = slots_[slot_index];
  if (!owner) owner = std::make_unique<Slot>();
  Slot& slot = *owner;
  MUSTER_CHECK(slot.in_memory.load() == 0, "a slot is used again before its child has executed");
  ChildPlan& plan = slot.plan;
  plan.request = request;
  plan.descriptor_limit = descriptor_limit_ ? &*descriptor_limit_ : nullptr;
  plan.parent = ::getpid();
  plan.reset = reset_.data();
  plan.reset_count = reset_.size();
  plan.failed_call = nullptr;
  slot.in_memory.store(1);
  slot.begun = SteadyClock::now();

  // A handler must not run in the child while it shares our memory: everything is blocked until it has
  // executed.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  const int pid = start_child(slot, request.cgroup_fd, pidfd);
  const int clone_errno = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid > 0) return Spawned{pid, UniqueFd(pidfd)};

  slot.in_memory.store(0);
  Error error = errno_error("start a process", clone_errno);
  if (clone_errno == EAGAIN) {
    error.code = ErrorCode::kExhausted;
    error.message += "; see ulimit -u and pids.max";
  }
  return fail(std::move(error));
}

Result<void> Spawner::wait_exec(std::size_t slot_index) {
  auto& slot = slots_[slot_index];
  if (!slot) return {};
  if (!slot->wait(slot->begun + exec_timeout_)) {
    Error error{ErrorCode::kTimeout,
                fmt::format("execute {}: no answer from its file system for {} s", slot->plan.request.path,
                            std::chrono::duration<double>(exec_timeout_).count())};
    abandon(slot);
    return fail(std::move(error));
  }
  const char* const call = std::exchange(slot->plan.failed_call, nullptr);
  if (call == nullptr) return {};
  if (call == kExecute) return fail(exec_error(slot->plan.request.path, slot->plan.failed_errno));
  return fail(errno_error(fmt::format("{} {}", call, slot->plan.request.path), slot->plan.failed_errno));
}

void reap_failed(int pidfd) {
  send_signal(pidfd, SIGKILL);
  wait_for_end(pidfd, SteadyClock::now() + kSpawnReapTimeout);
  (void)reap_child(pidfd);
}

}  // namespace muster::launcher
