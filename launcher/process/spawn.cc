// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/spawn.h"

#include <atomic>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <muster/check.h>

#include "launcher/process/clone_into.h"
#include "launcher/process/exec_error.h"
#include "launcher/process/raw_syscall.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kGuardBytes = 4096;

/// The kernel's own layout: glibc's sigaction() is intercepted by sanitizers, which keep tables in the shared
/// memory.
struct KernelSigaction {
  void* handler;
  unsigned long flags;
  void* restorer;
  std::uint64_t mask;
};

enum class Step : int { kNone, kSession, kDeathSignal, kParentGone, kDescriptors, kCpus, kMemory, kExec };

struct ChildPlan {
  SpawnRequest request;
  const rlimit* descriptor_limit;
  pid_t parent;
  const int* reset;
  std::size_t reset_count;
  // Written by the child, read by the parent after the child has executed or ended.
  volatile Step failed_step;
  volatile int failed_errno;
};

const char* text_of(Step step) {
  switch (step) {
    case Step::kSession:
      return "setsid";
    case Step::kDeathSignal:
      return "prctl(PR_SET_PDEATHSIG)";
    case Step::kParentGone:
      return "the launcher died while starting";
    case Step::kDescriptors:
      return "dup2";
    case Step::kCpus:
      return "sched_setaffinity";
    case Step::kMemory:
      return "set_mempolicy";
    case Step::kExec:
    case Step::kNone:
      break;
  }
  return "execute";
}

#define MUSTER_NO_SANITIZE __attribute__((no_sanitize("address", "undefined", "thread")))

template <class T>
MUSTER_NO_SANITIZE inline long word(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

[[noreturn]] MUSTER_NO_SANITIZE void give_up(ChildPlan* plan, Step step, long result) {
  plan->failed_errno = static_cast<int>(-result);
  plan->failed_step = step;
  raw_syscall(SYS_exit_group, 127);
  __builtin_unreachable();
}

/// Between clone and exec: system calls on prepared memory, nothing else.
MUSTER_NO_SANITIZE int run_child(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  const SpawnRequest& request = plan->request;
  long result = raw_syscall(SYS_setsid);
  if (result < 0) give_up(plan, Step::kSession, result);
  result = raw_syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
  if (result < 0) give_up(plan, Step::kDeathSignal, result);
  // The parent may have died before the line above took effect.
  if (raw_syscall(SYS_getppid) != plan->parent) give_up(plan, Step::kParentGone, -ESRCH);

  // Where Yama lets ancestors trace only: the tools that show stacks are the parent's other children.
  raw_syscall(SYS_prctl, PR_SET_PTRACER, plan->parent);
  KernelSigaction action{};
  for (std::size_t i = 0; i < plan->reset_count; ++i)
    raw_syscall(SYS_rt_sigaction, plan->reset[i], word(&action), 0, sizeof action.mask);
  if (request.stdout_fd >= 0) result = raw_syscall(SYS_dup3, request.stdout_fd, 1, 0);
  if (result >= 0 && request.stderr_fd >= 0) result = raw_syscall(SYS_dup3, request.stderr_fd, 2, 0);
  if (result < 0) give_up(plan, Step::kDescriptors, result);
  // Kernels before 5.11 cannot mark the range; muster's own descriptors are close-on-exec in any case.
  if (raw_syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC) < 0) raw_syscall(SYS_close_range, 3, ~0U, 0);
  if (plan->descriptor_limit != nullptr)
    raw_syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, word(plan->descriptor_limit), 0);
  const SpawnBinding& binding = request.binding;
  if (binding.cpus != nullptr) {
    result =
        raw_syscall(SYS_sched_setaffinity, 0, binding.cpu_words * sizeof(unsigned long), word(binding.cpus));
    if (result < 0) give_up(plan, Step::kCpus, result);
  }
  if (binding.memory_nodes != nullptr) {
    // The kernel reads one bit less than it is told.
    result = raw_syscall(SYS_set_mempolicy, MPOL_PREFERRED, word(binding.memory_nodes),
                         binding.memory_words * sizeof(unsigned long) * 8 + 1);
    if (result < 0) give_up(plan, Step::kMemory, result);
  }
  const std::uint64_t none = 0;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, word(&none), 0, sizeof none);
  result = raw_syscall(SYS_execve, word(request.path), word(request.arguments), word(request.environment));
  give_up(plan, Step::kExec, result);
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

std::size_t StringBlock::add(std::string text) {
  texts_.push_back(std::make_unique<std::string>(std::move(text)));
  pointers_.back() = texts_.back()->data();
  pointers_.push_back(nullptr);
  return texts_.size() - 1;
}

void StringBlock::replace(std::size_t index, std::string text) {
  *texts_[index] = std::move(text);
  pointers_[index] = texts_[index]->data();
}

struct Spawner::Lane {
  Lane()
      : stack(::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK,
                     -1, 0)) {
    MUSTER_CHECK(stack != MAP_FAILED, "no memory for a 64 KiB stack");
    ::mprotect(stack, kGuardBytes, PROT_NONE);
  }
  ~Lane() {
    wait();
    ::munmap(stack, kStackBytes);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Until the kernel has cleared the word: the child no longer uses our memory.
  void wait() const {
    for (int seen = in_memory.load(); seen != 0; seen = in_memory.load())
      ::syscall(SYS_futex, &in_memory, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }

  void* stack;  // with a guard page at its low end
  ChildPlan plan{};
  std::atomic<int> in_memory{0};
};
static_assert(sizeof(std::atomic<int>) == sizeof(int));

/// clone(2)'s result and errno.
int Spawner::start_child(Lane& lane, int cgroup_fd, int& pidfd) {
  constexpr unsigned kFlags = CLONE_VM | CLONE_PIDFD | CLONE_CHILD_CLEARTID;
  if (cgroup_fd < 0)
    return ::clone(run_child, static_cast<char*>(lane.stack) + kStackBytes, kFlags | SIGCHLD, &lane.plan,
                   &pidfd, nullptr, &lane.in_memory);
  clone_args arguments{};
  arguments.flags = kFlags | CLONE_INTO_CGROUP;
  arguments.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  arguments.child_tid = reinterpret_cast<std::uintptr_t>(&lane.in_memory);
  arguments.exit_signal = SIGCHLD;
  arguments.stack = reinterpret_cast<std::uintptr_t>(lane.stack);
  arguments.stack_size = kStackBytes;
  arguments.cgroup = static_cast<std::uint64_t>(cgroup_fd);
  const long result = clone_into(&arguments, run_child, &lane.plan);
  if (result >= 0) return static_cast<int>(result);
  errno = static_cast<int>(-result);
  return -1;
}

Spawner::Spawner(std::optional<rlimit> descriptor_limit)
    : descriptor_limit_(descriptor_limit), reset_(signals_to_reset()) {}

Spawner::~Spawner() = default;

Result<Spawned> Spawner::begin(std::size_t lane_index, const SpawnRequest& request) {
  auto& slot = lanes_[lane_index];
  if (!slot) slot = std::make_unique<Lane>();
  Lane& lane = *slot;
  MUSTER_CHECK(lane.in_memory.load() == 0, "a lane is used again before it was settled");
  ChildPlan& plan = lane.plan;
  plan.request = request;
  plan.descriptor_limit = descriptor_limit_ ? &*descriptor_limit_ : nullptr;
  plan.parent = ::getpid();
  plan.reset = reset_.data();
  plan.reset_count = reset_.size();
  plan.failed_step = Step::kNone;
  lane.in_memory.store(1);

  // A handler must not run in the child while it shares our memory: everything is blocked until it has
  // executed.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  const int pid = start_child(lane, request.cgroup_fd, pidfd);
  const int clone_errno = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid > 0) return Spawned{pid, UniqueFd(pidfd)};

  lane.in_memory.store(0);
  Error error = errno_error("start a process", clone_errno);
  if (clone_errno == EAGAIN) {
    error.code = ErrorCode::kExhausted;
    error.message += "; see ulimit -u and pids.max";
  }
  return fail(std::move(error));
}

Result<void> Spawner::settle(std::size_t lane_index) {
  const auto& lane = lanes_[lane_index];
  if (!lane) return {};
  lane->wait();
  const Step step = lane->plan.failed_step;
  if (step == Step::kNone) return {};
  lane->plan.failed_step = Step::kNone;
  if (step == Step::kExec) return fail(exec_error(lane->plan.request.path, lane->plan.failed_errno));
  return fail(
      errno_error(fmt::format("{} {}", text_of(step), lane->plan.request.path), lane->plan.failed_errno));
}

Result<Spawned> Spawner::spawn(const SpawnRequest& request) {
  MUSTER_TRY(Spawned child, begin(0, request));
  if (auto executed = settle(0); !executed) {
    siginfo_t info{};
    retry_eintr([&] {
      return ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(child.pidfd.get()), &info, WEXITED);
    });
    return fail(std::move(executed).error());
  }
  return child;
}

}  // namespace muster::launcher
