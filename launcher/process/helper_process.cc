// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/helper_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/process/process_stat.h"
#include "launcher/process/spawn.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kReapTimeout{100};  // a process that SIGKILL reaches needs well under one

[[noreturn]] void run_child(const HelperProcess::Options& options, const std::function<void(int)>& body,
                            int channel, pid_t parent) {
  if (!options.outlives_us) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(0);
  }
  ::setsid();
  set_process_title(options.name);
  // Nobody who reads our stdout or stderr, or connects to a port of ours, is to wait for this process.
  ::dup2(channel, 0);
  ::syscall(SYS_close_range, 1U, ~0U, 0U);
  ::open("/dev/null", O_RDWR);  // NOLINT(android-cloexec-open): a driver's library may write to 1 and 2
  ::dup2(1, 2);
  body(0);
  ::_exit(0);
}

}  // namespace

Result<HelperProcess> HelperProcess::start(const Options& options, const std::function<void(int)>& body) {
  int ends[2];
  if (::socketpair(AF_UNIX, options.socket_type | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(errno_error(fmt::format("socketpair for {}", options.name), errno));
  HelperProcess out;
  out.outlives_us_ = options.outlives_us;
  out.channel_.reset(ends[0]);
  const UniqueFd childs_end(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const pid_t parent = ::getpid();
  // A signal must not find the child with the agent's handlers, which would tell the agent of it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  out.pid_ = ::fork();
  const int fork_errno = errno;
  if (out.pid_ == 0) run_child(options, body, childs_end.get(), parent);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (out.pid_ < 0) return fail(errno_error(fmt::format("fork {}", options.name), fork_errno));
  out.handle_ = open_pidfd(out.pid_);
  return out;
}

Result<HelperProcess> HelperProcess::execute(const Options& options, const std::vector<std::string>& command,
                                             const Environment& environment, bool with_stderr,
                                             const std::function<void(int channel, int error)>& failed) {
  StringBlock arguments, variables;
  for (const std::string& word : command) arguments.add(word);
  for (const auto& [name, value] : environment) variables.add(fmt::format("{}={}", name, value));
  return start(options, [&](int channel) {
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(channel, STDOUT_FILENO);
    ::dup2(STDERR_FILENO, STDIN_FILENO);  // /dev/null
    if (with_stderr) ::dup2(STDOUT_FILENO, STDERR_FILENO);
    ::execve(arguments.data()[0], arguments.data(), variables.data());
    failed(STDOUT_FILENO, errno);
  });
}

HelperProcess::~HelperProcess() {
  if (!handle_ || outlives_us_) return;
  kill();
  wait(SteadyClock::now() + kReapTimeout);
}

void HelperProcess::kill() const {
  if (handle_) send_signal(handle_.get(), SIGKILL);
}

void HelperProcess::wait(Instant deadline) const {
  if (wait_for_end(handle_.get(), deadline)) (void)reap_child(handle_.get());
}

}  // namespace muster::launcher
