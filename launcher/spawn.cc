// SPDX-License-Identifier: Apache-2.0
#include "launcher/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <muster/check.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
constexpr std::size_t kGuardBytes = 4096;

/// The kernel's own layout: glibc's sigaction() is intercepted by sanitizers, which keep tables in the shared memory.
struct KernelSigaction {
  void* handler;
  unsigned long flags;
  void* restorer;
  std::uint64_t mask;
};

enum class Step : int { kNone, kSession, kDeathSignal, kParentGone, kDescriptors, kExec };

struct ChildPlan {
  const SpawnRequest* request;
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
    case Step::kSession: return "setsid";
    case Step::kDeathSignal: return "prctl(PR_SET_PDEATHSIG)";
    case Step::kParentGone: return "the launcher died while starting";
    case Step::kDescriptors: return "dup2";
    case Step::kExec:
    case Step::kNone: break;
  }
  return "execute";
}

#define MUSTER_NO_SANITIZE __attribute__((no_sanitize("address", "undefined", "thread")))

[[noreturn]] MUSTER_NO_SANITIZE void give_up(ChildPlan* plan, Step step) {
  plan->failed_errno = errno;
  plan->failed_step = step;
  ::syscall(SYS_exit_group, 127);
  __builtin_unreachable();
}

/// Between clone and exec: system calls on prepared memory, nothing else.
MUSTER_NO_SANITIZE int run_child(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  const SpawnRequest& request = *plan->request;
  if (::syscall(SYS_setsid) < 0) give_up(plan, Step::kSession);
  if (::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) give_up(plan, Step::kDeathSignal);
  // The parent may have died before the line above took effect.
  if (::syscall(SYS_getppid) != plan->parent) give_up(plan, Step::kParentGone);

  KernelSigaction action{};
  for (std::size_t i = 0; i < plan->reset_count; ++i)
    ::syscall(SYS_rt_sigaction, plan->reset[i], &action, nullptr, sizeof action.mask);
  if (request.stdout_fd >= 0 && ::syscall(SYS_dup3, request.stdout_fd, 1, 0) < 0) give_up(plan, Step::kDescriptors);
  if (request.stderr_fd >= 0 && ::syscall(SYS_dup3, request.stderr_fd, 2, 0) < 0) give_up(plan, Step::kDescriptors);
  // Kernels before 5.11 cannot mark the range; muster's own descriptors are close-on-exec in any case.
  if (::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) != 0) ::syscall(SYS_close_range, 3U, ~0U, 0U);
  if (plan->descriptor_limit != nullptr)
    ::syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, plan->descriptor_limit, nullptr);
  std::uint64_t none = 0;
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none);
  ::syscall(SYS_execve, request.path, request.arguments, request.environment);
  give_up(plan, Step::kExec);
}

/// Signals whose disposition exec would not reset (ignored) or that must not run a handler in shared memory (handled).
std::vector<int> signals_to_reset() {
  std::vector<int> out;
  for (int signal = 1; signal < 65; ++signal) {
    KernelSigaction current{};
    if (::syscall(SYS_rt_sigaction, signal, nullptr, &current, sizeof current.mask) == 0 && current.handler != nullptr)
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

Spawner::Spawner(std::optional<rlimit> descriptor_limit)
    : descriptor_limit_(descriptor_limit),
      reset_(signals_to_reset()),
      stack_(::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)) {
  MUSTER_CHECK(stack_ != MAP_FAILED, "no memory for a 64 KiB stack");
  ::mprotect(stack_, kGuardBytes, PROT_NONE);
}

Spawner::~Spawner() { ::munmap(stack_, kStackBytes); }

Result<Spawned> Spawner::spawn(const SpawnRequest& request) {
  ChildPlan plan{};
  plan.request = &request;
  plan.descriptor_limit = descriptor_limit_ ? &*descriptor_limit_ : nullptr;
  plan.parent = ::getpid();
  plan.reset = reset_.data();
  plan.reset_count = reset_.size();

  // A handler must not run in the child while it shares our memory: everything is blocked until it has executed.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  const int pid = ::clone(run_child, static_cast<char*>(stack_) + kStackBytes,
                          CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &plan, &pidfd);
  const int clone_errno = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);

  if (pid < 0) {
    const Error error = errno_error("start a process", clone_errno);
    return fail(clone_errno == EAGAIN ? Error{ErrorCode::kExhausted, error.message + "; see ulimit -u and pids.max"}
                                      : error);
  }
  Spawned out{pid, UniqueFd(pidfd)};
  if (plan.failed_step == Step::kNone) return out;
  siginfo_t info{};
  retry_eintr([&] { return ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED); });
  return fail(errno_error(fmt::format("{} {}", text_of(plan.failed_step), request.path), plan.failed_errno));
}

}  // namespace muster::launcher
