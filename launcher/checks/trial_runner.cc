// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/trial_runner.h"

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

namespace muster::launcher {
namespace {

using End = DeviceTrial::End;

constexpr std::size_t kMostBytes = 65536;          // of what one of them may say
constexpr std::chrono::seconds kGoingPatience{5};  // for them to end once all is said
// What is left of an all-reduce when one of them has gone.
constexpr std::chrono::seconds kAftermath{3};

struct Child {
  pid_t pid = 0;
  UniqueFd end;   // pidfd
  UniqueFd line;  // stdin and stdout
  std::string pending;
  std::size_t heard = 0;
};

class Runner {
 public:
  Runner(const TrialPlan& plan, Instant deadline) : plan_(plan), deadline_(deadline) {}
  ~Runner() {
    for (const Child& child : children_)
      if (child.pid > 1) ::kill(-child.pid, SIGKILL);
    reap(SteadyClock::now() + kGoingPatience);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  std::vector<DeviceTrial> run() {
    for (const TrialDevice& device : plan_.devices) start(device);
    while (any_open()) {
      go_on();
      if (!wait()) break;
    }
    give_up(SteadyClock::now() < deadline_ || stopping_ ? End::kStopped : End::kLate);
    return std::move(trials_);
  }

 private:
  void start(const TrialDevice& device) {
    DeviceTrial& trial = trials_.emplace_back();
    trial.name = device.name;
    trial.is_gpu = device.is_gpu;
    Child& child = children_.emplace_back();
    if (const int error = spawn(device, child); error != 0) {
      trial.defect = fmt::format("{} cannot be started: {}", plan_.program, std::strerror(error));
      trial.end = End::kEnded;
    }
  }

  /// 0, or the error's number.
  int spawn(const TrialDevice& device, Child& child) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return errno;
    child.line = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::vector<std::string> arguments{plan_.program};
    arguments.insert(arguments.end(), device.arguments.begin(), device.arguments.end());
    std::vector<std::string> variables;
    variables.reserve(device.environment.size());
    for (const auto& [name, value] : device.environment)
      variables.push_back(fmt::format("{}={}", name, value));
    const auto pointers = [](std::vector<std::string>& from) {
      std::vector<char*> out;
      out.reserve(from.size() + 1);
      for (std::string& each : from) out.push_back(each.data());
      out.push_back(nullptr);
      return out;
    };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_adddup2(&files, theirs.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, theirs.get(), STDOUT_FILENO);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(&attributes,
                               POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int error = ::posix_spawn(&child.pid, plan_.program.c_str(), &files, &attributes,
                                    pointers(arguments).data(), pointers(variables).data());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
    if (error != 0) {
      child.pid = 0;
      child.line.reset();
      return error;
    }
    child.end = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0U)));
    return 0;
  }

  [[nodiscard]] bool any_open() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.line.get() >= 0; });
  }

  /// Tells them all to go on together, or not at all; and to end, when all is done.
  void go_on() {
    const auto all = [&](auto holds) { return std::all_of(trials_.begin(), trials_.end(), holds); };
    const bool failed = std::any_of(trials_.begin(), trials_.end(), has_failed);
    if (failed && !stopping_) {
      // Those that are through alone have nothing to wait for; those that are not yet may fail too.
      const bool alone = !went_;
      if (!alone) deadline_ = std::min(deadline_, SteadyClock::now() + kAftermath);
      if (!alone || all([](const DeviceTrial& trial) { return trial.ready || has_failed(trial); })) {
        stopping_ = true;
        if (alone) dismiss_all();
      }
      return;
    }
    if (!went_ && all([](const DeviceTrial& trial) { return trial.ready.has_value(); })) {
      went_ = true;
      const std::string text = fmt::format("go {}\n", trials_.front().ready.value_or(0));
      for (const Child& child : children_)
        if (child.line) (void)::send(child.line.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (went_ && !dismissed_ && all([](const DeviceTrial& trial) { return trial.done; })) {
      dismissed_ = true;
      dismiss_all();
    }
  }

  /// They end when they have nothing more to hear.
  void dismiss_all() {
    for (const Child& child : children_)
      if (child.line) ::shutdown(child.line.get(), SHUT_WR);
  }

  /// For the next words; false: the deadline has come.
  bool wait() {
    std::vector<pollfd> waits;
    std::vector<std::size_t> whose;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i].line) continue;
      waits.push_back({children_[i].line.get(), POLLIN, 0});
      whose.push_back(i);
    }
    const auto left = static_cast<int>(time_left(deadline_, SteadyClock::now()).count());
    const int ready = retry_eintr([&] { return ::poll(waits.data(), waits.size(), left); });
    if (ready <= 0) return false;
    for (std::size_t i = 0; i < waits.size(); ++i)
      if (waits[i].revents != 0) hear(children_[whose[i]], trials_[whose[i]]);
    return true;
  }

  void hear(Child& child, DeviceTrial& trial) {
    char block[4096];
    const ssize_t n =
        retry_eintr([&] { return ::recv(child.line.get(), block, sizeof block, MSG_DONTWAIT); });
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return ended(child, trial);
    child.heard += static_cast<std::size_t>(n);
    child.pending.append(block, static_cast<std::size_t>(n));
    for (auto end = child.pending.find('\n'); end != std::string::npos; end = child.pending.find('\n')) {
      take_line(trial, std::string_view(child.pending).substr(0, end));
      child.pending.erase(0, end + 1);
    }
    if (child.heard <= kMostBytes) return;
    trial.defect = "it says more than muster-preflight ever does";
    ::kill(-child.pid, SIGKILL);
    child.line.reset();
  }

  /// It has closed its end; it may still be dying.
  void ended(Child& child, DeviceTrial& trial) {
    child.line.reset();
    if (child.end) {
      pollfd gone{child.end.get(), POLLIN, 0};
      const auto left = static_cast<int>(time_left(deadline_, SteadyClock::now()).count());
      if (retry_eintr([&] { return ::poll(&gone, 1, left); }) <= 0) return;
    }
    // Others of its group as well, while the number is still its own.
    ::kill(-child.pid, SIGKILL);
    int status = 0;
    if (retry_eintr([&] { return ::waitpid(child.pid, &status, WNOHANG); }) != child.pid) return;
    child.pid = 0;
    trial.end = End::kEnded;
    if (WIFSIGNALED(status))
      trial.process.signal = WTERMSIG(status);
    else
      trial.process.code = WEXITSTATUS(status);
  }

  void give_up(End why) {
    for (DeviceTrial& trial : trials_) {
      if (trial.end != End::kUnknown) continue;
      const bool waited = !went_ && trial.ready;  // for another one
      trial.end = trial.done ? End::kEnded : waited ? End::kStopped : why;
    }
  }

  /// One that hangs in the kernel does not die now: it is left to whoever reaps our children.
  void reap(Instant until) {
    for (Child& child : children_) {
      if (child.pid <= 1) continue;
      if (child.end) {
        pollfd gone{child.end.get(), POLLIN, 0};
        retry_eintr(
            [&] { return ::poll(&gone, 1, static_cast<int>(time_left(until, SteadyClock::now()).count())); });
      }
      int status = 0;
      retry_eintr([&] { return ::waitpid(child.pid, &status, WNOHANG); });
    }
  }

  const TrialPlan& plan_;
  Instant deadline_;
  std::vector<Child> children_;
  std::vector<DeviceTrial> trials_;
  bool went_ = false;       // all were told to go on together
  bool stopping_ = false;   // one has failed, and the others have been told
  bool dismissed_ = false;  // all are done
};

}  // namespace

std::vector<DeviceTrial> run_trials(const TrialPlan& plan, std::chrono::milliseconds patience) {
  return Runner(plan, SteadyClock::now() + patience).run();
}

}  // namespace muster::launcher
