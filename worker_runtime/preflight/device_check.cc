// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/device_check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::preflight {
namespace {

using Speed = std::optional<double> DeviceCheck::*;
using End = DeviceCheck::End;

constexpr std::size_t kMostText = 300;  // of an error
constexpr double kSlowGpu = 0.7;        // neighbours of one model are within a few per cent
constexpr double kSlowCpu = 0.5;
constexpr double kGiB = 1 << 30;

struct Kind {
  Speed speed;
  std::string_view name;
  std::string_view unit;
  double scale;
};
constexpr Kind kGemm{&DeviceCheck::gemm, "GEMM", "TFLOP/s", 1e12};
constexpr Kind kCpuGemm{&DeviceCheck::gemm, "GEMM", "GFLOP/s", 1e9};
constexpr Kind kCopy{&DeviceCheck::copy, "memory copies", "GiB/s", kGiB};
constexpr Kind kReduce{&DeviceCheck::reduce, "all-reduce", "GiB/s", kGiB};

const Kind& gemm_of(std::span<const DeviceCheck> checks) {
  return !checks.empty() && checks.front().is_gpu ? kGemm : kCpuGemm;
}

/// Ascending.
std::vector<double> values(std::span<const DeviceCheck> checks, Speed speed) {
  std::vector<double> out;
  for (const DeviceCheck& check : checks)
    if (check.*speed) out.push_back(*(check.*speed));
  std::sort(out.begin(), out.end());
  return out;
}

double median(const std::vector<double>& ascending) {
  const std::size_t middle = ascending.size() / 2;
  return ascending.size() % 2 == 1 ? ascending[middle] : (ascending[middle - 1] + ascending[middle]) / 2;
}

/// "640", "61.2", "0.043": three digits, more where they are before the point.
std::string digits(double value) {
  const int after = value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f}", value, after);
}

void judge_speed(std::span<const DeviceCheck> checks, const Kind& kind, std::vector<Finding>& out) {
  const std::vector<double> all = values(checks, kind.speed);
  if (all.size() < 2) return;
  // Of two nobody knows which is the usual one, but the faster one shows what is possible.
  const double usual = all.size() == 2 ? all.back() : median(all);
  for (const DeviceCheck& check : checks) {
    const std::optional<double>& own = check.*kind.speed;
    if (!own || *own >= (check.is_gpu ? kSlowGpu : kSlowCpu) * usual) continue;
    out.push_back(
        {check.is_gpu,
         fmt::format("{}: {} {} {}, {} {}", check.name, kind.name, digits(*own / kind.scale), kind.unit,
                     all.size() == 2 ? "the other one has" : "the median of this node is",
                     digits(usual / kind.scale))});
  }
}

std::string end_text(const DeviceCheck& check) {
  const std::string step = check.step.empty() ? "before its first step" : "in " + std::string(check.step);
  if (check.signal != 0)
    return fmt::format("{}: the check died {} (SIG{})", check.name, step, ::sigabbrev_np(check.signal));
  return fmt::format("{}: the check ended {} (exit status {})", check.name, step, check.exit_code);
}

}  // namespace

bool has_failed(const DeviceCheck& check) {
  return !check.error.empty() || check.end == End::kLate || (check.end == End::kEnded && !check.done);
}

std::vector<Finding> judge(std::span<const DeviceCheck> checks, std::chrono::milliseconds timeout) {
  std::vector<Finding> out;
  const double seconds = std::chrono::duration<double>(timeout).count();
  // In the all-reduce the others fail with the one that is gone; and where all are late, none is to blame.
  const auto dead = [](const DeviceCheck& check) {
    return check.end == End::kEnded && !check.done && check.error.empty();
  };
  const bool somebody_died = std::any_of(checks.begin(), checks.end(), dead);
  const auto late_together = [](const DeviceCheck& check) {
    return check.end == End::kLate && check.ready.has_value();
  };
  const auto late = static_cast<std::size_t>(std::count_if(checks.begin(), checks.end(), late_together));
  if (late == checks.size() && late > 1)
    out.push_back({true, fmt::format("the all-reduce of {} devices took more than {} s", late, seconds)});
  for (const DeviceCheck& check : checks) {
    if (!check.error.empty()) {
      if (!somebody_died || !check.ready)
        out.push_back({true, fmt::format("{}: {}", check.name, check.error)});
    } else if (dead(check)) {
      out.push_back({true, end_text(check)});
    } else if (check.end == End::kLate &&
               !(late_together(check) && (somebody_died || late == checks.size()))) {
      out.push_back({true, fmt::format("{}: {} took more than {} s", check.name,
                                       check.step.empty() ? "its start" : check.step, seconds)});
    }
  }
  judge_speed(checks, kCopy, out);
  judge_speed(checks, gemm_of(checks), out);
  return out;
}

std::string speeds_text(std::span<const DeviceCheck> checks) {
  std::string out;
  const auto add = [&](const Kind& kind) {
    const std::vector<double> all = values(checks, kind.speed);
    if (all.empty()) return;
    out += out.empty() ? "" : ", ";
    const std::string low = digits(all.front() / kind.scale), high = digits(all.back() / kind.scale);
    out += fmt::format("{} {}", kind.name, low);
    if (low != high) out += fmt::format(" to {}", high);
    out += fmt::format(" {}", kind.unit);
    if (low != high && all.size() > 2) out += fmt::format(" (median {})", digits(median(all) / kind.scale));
  };
  add(gemm_of(checks));
  add(kCopy);
  add(kReduce);
  if (out.empty()) return out;
  const auto [one, many] =
      checks.front().is_gpu ? std::pair("GPU", "GPUs") : std::pair("process", "processes");
  return fmt::format("{} {}: {}", checks.size(), checks.size() == 1 ? one : many, out);
}

namespace {

constexpr std::chrono::seconds kKillTimeout{5};  // for SIGKILL to end a process
// What is left of an all-reduce when one of its processes has ended.
constexpr std::chrono::seconds kAfterFailure{3};

struct Child {
  DeviceCheck check;
  pid_t pid = 0;
  UniqueFd process;  // pidfd
  UniqueFd socket;
};

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
      if (started(child) && wait_until_ready(child.process.get(), POLLIN, until))
        ::waitpid(child.pid, nullptr, WNOHANG);
  }
  Runner& operator=(Runner&&) = delete;  // nor copied

  void start(const DeviceProcess& device) {
    Child& child = children_.emplace_back();
    child.check.name = device.name;
    child.check.is_gpu = device.is_gpu;
    int ends[2];
    const pid_t parent = ::getpid();
    const bool connected = ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
    child.pid = connected ? ::fork() : -1;
    if (connected) {
      child.socket.reset(ends[0]);
      const UniqueFd theirs(ends[1]);
      if (child.pid == 0) run_child(parent, theirs.get(), device);
    }
    if (child.pid > 0) child.process = open_pidfd(child.pid);
    if (child.process) return;
    child.check.error = fmt::format("its process cannot be started: {}", std::strerror(errno));
    child.check.end = End::kEnded;
    child.socket.reset();
  }

  std::vector<DeviceCheck> run() {
    while (std::ranges::any_of(children_, [](const Child& child) { return bool{child.socket}; })) {
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
  [[noreturn]] static void run_child(pid_t parent, int socket, const DeviceProcess& device) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);  // a library may print there, which is the launcher's to read
    DeviceLink link(socket);
    const auto done = device.work(link);
    if (!done) link.send(done.error().message);
    ::_exit(done ? 0 : 1);
  }

  /// Tells all to go on together, or not at all; and to end, when all is done.
  void go_on() {
    if (std::ranges::any_of(children_, has_failed, &Child::check)) {
      if (stopping_) return;
      if (together_) {
        deadline_ = std::min(deadline_, SteadyClock::now() + kAfterFailure);
        stopping_ = true;
      } else if (std::ranges::all_of(
                     children_, [](const DeviceCheck& check) { return check.ready || has_failed(check); },
                     &Child::check)) {
        // Only now: a device that still does its own steps may have an error, too.
        stopping_ = true;
        dismiss_all();
      }
      return;
    }
    const auto is_ready = [](const DeviceCheck& check) { return check.ready.has_value(); };
    if (!together_ && std::ranges::all_of(children_, is_ready, &Child::check)) {
      together_ = true;
      const std::uint16_t port = *children_.front().check.ready;
      for (const Child& child : children_)
        if (child.socket) (void)::send(child.socket.get(), &port, sizeof port, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (together_ && !dismissed_ && std::ranges::all_of(children_, &DeviceCheck::done, &Child::check))
      dismiss_all();
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
    Report report;
    char error[kMostText];
    const std::array<iovec, 2> parts{{{&report, sizeof report}, {error, sizeof error}}};
    const ssize_t n = retry_eintr([&] { return ::readv(child.socket.get(), parts.data(), parts.size()); });
    if (n < static_cast<ssize_t>(sizeof report)) return take_end(child);
    static_cast<Report&>(child.check) = report;
    child.check.error.assign(error, static_cast<std::size_t>(n) - sizeof report);
  }

  /// The process has closed its end; it may still be dying.
  void take_end(Child& child) {
    child.socket.reset();
    int status = 0;
    if (!wait_until_ready(child.process.get(), POLLIN, deadline_) ||
        ::waitpid(child.pid, &status, WNOHANG) != child.pid)
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

void DeviceLink::send(std::string_view error) {
  const std::string text = one_line(error, kMostText);
  const std::array<iovec, 2> parts{
      {{&report, sizeof report}, {const_cast<char*>(text.data()), std::min(text.size(), kMostText)}}};
  (void)::writev(socket_, parts.data(), parts.size());
}

std::uint16_t DeviceLink::wait_to_go() {
  std::uint16_t port = 0;
  (void)retry_eintr([&] { return ::read(socket_, &port, sizeof port); });
  return port;
}

std::vector<DeviceCheck> run_checks(std::span<const DeviceProcess> devices,
                                    std::chrono::milliseconds timeout) {
  Runner runner(SteadyClock::now() + timeout);
  for (const DeviceProcess& device : devices) runner.start(device);
  return runner.run();
}

}  // namespace muster::preflight
