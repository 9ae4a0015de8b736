// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/helper_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/text/process_title.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr int kReapMs = 100;  // a process that SIGKILL reaches needs well under one

[[noreturn]] void run_child(const char* name, const std::function<void(int)>& body, int writer,
                            pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  ::setsid();
  set_process_title(name);
  // The guardian must not take this process for its owner, nor a reader of our stderr for a writer.
  ::dup2(writer, 0);
  ::syscall(SYS_close_range, 1U, ~0U, 0U);
  ::open("/dev/null", O_RDWR);  // NOLINT(android-cloexec-open): a driver's library may write to 1 and 2
  ::dup2(1, 2);
  body(0);
  ::_exit(0);
}

}  // namespace

Result<HelperProcess> HelperProcess::start(const char* name, const std::function<void(int)>& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error(fmt::format("pipe for {}", name), errno));
  HelperProcess out;
  out.output_.reset(ends[0]);
  UniqueFd writer(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const pid_t parent = ::getpid();
  // A signal must not find the child with the agent's handlers, which would tell the agent of it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  // Not clone(2): the agent may have a thread that holds a lock of the allocator's.
  out.pid_ = ::fork();
  const int fork_errno = errno;
  if (out.pid_ == 0) run_child(name, body, writer.get(), parent);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (out.pid_ < 0) return fail(errno_error(fmt::format("fork {}", name), fork_errno));
  out.handle_.reset(static_cast<int>(::syscall(SYS_pidfd_open, out.pid_, 0U)));
  return out;
}

HelperProcess::HelperProcess(HelperProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      handle_(std::move(other.handle_)),
      output_(std::move(other.output_)) {}

HelperProcess::~HelperProcess() {
  if (pid_ <= 0 || !handle_) return;
  ::syscall(SYS_pidfd_send_signal, handle_.get(), SIGKILL, nullptr, 0);
  pollfd end{handle_.get(), POLLIN, 0};
  retry_eintr([&] { return ::poll(&end, 1, kReapMs); });
  siginfo_t info{};
  // It may be reaped already, with the orphans.
  ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(handle_.get()), &info, WEXITED | WNOHANG);
}

}  // namespace muster::launcher
