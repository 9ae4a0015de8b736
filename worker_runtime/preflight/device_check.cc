// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/device_check.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
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

std::optional<double> parse_speed(std::string_view text) {
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(out) || out <= 0 || out > 1e21) return std::nullopt;
  return out;
}

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
  const std::string step = check.step.empty() ? "before its first step" : "in " + check.step;
  if (check.signal != 0)
    return fmt::format("{}: the check died {} (SIG{})", check.name, step, ::sigabbrev_np(check.signal));
  return fmt::format("{}: the check ended {} (exit status {})", check.name, step, check.exit_code);
}

}  // namespace

void read_line(DeviceCheck& check, std::string_view line) {
  const auto space = line.find(' ');
  const std::string_view word = line.substr(0, space);
  const std::string_view value =
      space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  const auto refuse = [&] {
    if (check.error.empty()) check.error = fmt::format("unexpected output: {}", one_line(line, 80));
  };
  const auto take_speed = [&](Speed to) {
    check.*to = parse_speed(value);
    if (!(check.*to)) refuse();
  };
  if (word == "at") {
    check.step = one_line(value, 80);
  } else if (word == "copy") {
    take_speed(&DeviceCheck::copy);
  } else if (word == "gemm") {
    take_speed(&DeviceCheck::gemm);
  } else if (word == "reduce") {
    take_speed(&DeviceCheck::reduce);
  } else if (word == "ready") {
    std::uint16_t port = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), port);
    if (error != std::errc{} || end != value.data() + value.size() || value.empty()) return refuse();
    check.ready = port;
  } else if (word == "bad") {
    if (check.error.empty()) check.error = one_line(value, kMostText);
  } else if (word == "done") {
    check.done = true;
  } else {
    refuse();
  }
}

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
  const bool gpu = checks.front().is_gpu;
  return fmt::format("{} {}{}: {}", checks.size(), gpu ? "GPU" : "process",
                     checks.size() == 1 ? ""
                     : gpu              ? "s"
                                        : "es",
                     out);
}

namespace {

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
