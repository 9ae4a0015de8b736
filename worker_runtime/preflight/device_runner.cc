// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/preflight/device_check.h"

namespace muster::preflight {
namespace {

using End = DeviceCheck::End;

constexpr std::size_t kMostBytes = 65536;        // of what one process may write
constexpr std::chrono::seconds kKillTimeout{5};  // for SIGKILL to end a process
// What is left of an all-reduce when one of its processes has ended.
constexpr std::chrono::seconds kAfterFailure{3};

struct Child {
  DeviceCheck check;
  pid_t pid = 0;
  UniqueFd process;  // pidfd
  UniqueFd socket;   // its stdin and stdout
  std::string pending;
  std::size_t read_bytes = 0;
};

/// False: the deadline came first.
bool wait_for(int fd, Instant deadline) {
  pollfd wait{fd, POLLIN, 0};
  const auto left = static_cast<int>(time_left(deadline, SteadyClock::now()).count());
  return retry_eintr([&] { return ::poll(&wait, 1, left); }) > 0;
}

class Runner {
 public:
  explicit Runner(Instant deadline) : deadline_(deadline) {}
  ~Runner() {
    const auto started = [](const Child& child) { return child.pid > 1; };
    for (const Child& child : children_)
      if (started(child)) ::kill(child.pid, SIGKILL);
    // One that hangs in the kernel does not end now: it is left to whoever reaps this process's children.
    const Instant until = SteadyClock::now() + kKillTimeout;
    for (const Child& child : children_)
      if (started(child) && wait_for(child.process.get(), until)) ::waitpid(child.pid, nullptr, WNOHANG);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void start(const std::string& program, const DeviceProcess& device) {
    Child& child = children_.emplace_back();
    child.check.name = device.name;
    child.check.is_gpu = device.is_gpu;
    if (const int error = spawn(program, device, child); error != 0) {
      child.check.error = fmt::format("{} cannot be started: {}", program, std::strerror(error));
      child.check.end = End::kEnded;
    }
  }

  std::vector<DeviceCheck> run() {
    while (any([](const Child& child) { return child.socket.get() >= 0; })) {
      go_on();
      if (!read_some()) break;
    }
    const End why = SteadyClock::now() < deadline_ || stopping_ ? End::kStopped : End::kLate;
    std::vector<DeviceCheck> out;
    for (Child& child : children_) {
      DeviceCheck& check = child.check;
      const bool waited = !together_ && check.ready;  // for another one
      if (check.end == End::kRunning) check.end = check.done ? End::kEnded : waited ? End::kStopped : why;
      out.push_back(std::move(check));
    }
    return out;
  }

 private:
  /// 0, or the error's number.
  static int spawn(const std::string& program, const DeviceProcess& device, Child& child) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return errno;
    child.socket = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::vector<std::string> words{program};
    words.insert(words.end(), device.arguments.begin(), device.arguments.end());
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, theirs.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, theirs.get(), STDOUT_FILENO);
    const int error =
        ::posix_spawn(&child.pid, program.c_str(), &files, nullptr, arguments.data(), ::environ);
    ::posix_spawn_file_actions_destroy(&files);
    if (error != 0) {
      child.pid = 0;
      child.socket.reset();
      return error;
    }
    child.process = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0U)));
    return 0;
  }

  template <class Holds>
  [[nodiscard]] bool any(Holds holds) const {
    return std::any_of(children_.begin(), children_.end(), holds);
  }
  template <class Holds>
  [[nodiscard]] bool all(Holds holds) const {
    return std::all_of(children_.begin(), children_.end(), holds);
  }

  /// Tells all to go on together, or not at all; and to end, when all is done.
  void go_on() {
    if (any([](const Child& child) { return has_failed(child.check); })) {
      if (stopping_) return;
      if (together_) {
        deadline_ = std::min(deadline_, SteadyClock::now() + kAfterFailure);
        stopping_ = true;
      } else if (all([](const Child& child) { return child.check.ready || has_failed(child.check); })) {
        // Only now: a device that still does its own steps may have an error, too.
        stopping_ = true;
        dismiss_all();
      }
      return;
    }
    if (!together_ && all([](const Child& child) { return child.check.ready.has_value(); })) {
      together_ = true;
      const std::string text = fmt::format("go {}\n", *children_.front().check.ready);
      for (const Child& child : children_)
        if (child.socket)
          (void)::send(child.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (together_ && !dismissed_ && all([](const Child& child) { return child.check.done; })) dismiss_all();
  }

  /// They end at the end of their input.
  void dismiss_all() {
    dismissed_ = true;
    for (const Child& child : children_)
      if (child.socket) ::shutdown(child.socket.get(), SHUT_WR);
  }

  /// False: the deadline has come.
  bool read_some() {
    std::vector<pollfd> waits;
    waits.reserve(children_.size());
    for (const Child& child : children_) waits.push_back({child.socket.get(), POLLIN, 0});  // -1: passed over
    const auto left = static_cast<int>(time_left(deadline_, SteadyClock::now()).count());
    if (retry_eintr([&] { return ::poll(waits.data(), waits.size(), left); }) <= 0) return false;
    for (std::size_t i = 0; i < waits.size(); ++i)
      if (waits[i].revents != 0) read_from(children_[i]);
    return true;
  }

  void read_from(Child& child) {
    char block[4096];
    const ssize_t n = retry_eintr([&] { return ::read(child.socket.get(), block, sizeof block); });
    if (n <= 0) return take_end(child);
    child.pending.append(block, static_cast<std::size_t>(n));
    for (auto end = child.pending.find('\n'); end != std::string::npos; end = child.pending.find('\n')) {
      read_line(child.check, std::string_view(child.pending).substr(0, end));
      child.pending.erase(0, end + 1);
    }
    child.read_bytes += static_cast<std::size_t>(n);
    if (child.read_bytes <= kMostBytes) return;
    child.check.error = "more output than muster-preflight ever writes";
    child.socket.reset();
  }

  /// The process has closed its end; it may still be dying.
  void take_end(Child& child) {
    child.socket.reset();
    int status = 0;
    if (!wait_for(child.process.get(), deadline_) || ::waitpid(child.pid, &status, WNOHANG) != child.pid)
      return;
    child.pid = 0;
    child.check.end = End::kEnded;
    child.check.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    child.check.exit_code = WEXITSTATUS(status);
  }

  Instant deadline_;
  std::vector<Child> children_;
  bool together_ = false;   // all were told to go on together
  bool stopping_ = false;   // one has failed, and the others are to end
  bool dismissed_ = false;  // all were told to end
};

}  // namespace

std::vector<DeviceCheck> run_checks(const std::string& program, std::span<const DeviceProcess> devices,
                                    std::chrono::milliseconds timeout) {
  Runner runner(SteadyClock::now() + timeout);
  for (const DeviceProcess& device : devices) runner.start(program, device);
  return runner.run();
}

}  // namespace muster::preflight
