// SPDX-License-Identifier: Apache-2.0
#include "launcher/gpu_release.h"

#include <algorithm>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/nvml.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr Millis kBetweenLooks{20};      // NVML has no event for it
constexpr Millis kDriverPatience{1000};  // beyond the wait itself
constexpr char kHeld = 'h';
constexpr char kDone = 'd';  // asked, or there is nobody to ask

std::vector<GpuHold> holds_of(const Nvml& nvml, std::span<const pid_t> workers) {
  std::vector<GpuHold> out;
  for (unsigned i = 0; i < nvml.count().value_or(0); ++i) {
    const Nvml::Device device = nvml.device(i);
    if (device == nullptr) continue;
    for (const Nvml::Process& process : nvml.processes(device)) {
      const auto pid = static_cast<pid_t>(process.pid);
      if (std::find(workers.begin(), workers.end(), pid) != workers.end())
        out.push_back({i, nvml.uuid(device), pid, process.bytes});
    }
  }
  return out;
}

[[noreturn]] void run_child(const GpuPaths& paths, std::span<const pid_t> workers, Instant deadline,
                            int writer, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  // The guardian must not take this process for its owner.
  ::dup2(writer, 0);
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  if (const auto nvml = paths.library.empty() ? Nvml::open() : Nvml::open(paths.library)) {
    std::vector<GpuHold> holds = holds_of(*nvml, workers);
    while (!holds.empty() && SteadyClock::now() < deadline) {
      const timespec pause{0, std::chrono::nanoseconds(kBetweenLooks).count()};
      ::nanosleep(&pause, nullptr);
      holds = holds_of(*nvml, workers);
    }
    for (const GpuHold& hold : holds) {
      const bool ended = ::kill(hold.pid, 0) != 0 && errno == ESRCH;
      (void)write_all(0, fmt::format("{}{}\n", kHeld, describe(hold, ended)));
    }
  }
  (void)write_all(0, fmt::format("{}\n", kDone));
  ::_exit(0);
}

/// Until the other end is closed. False: the deadline passed.
bool read_until_closed(int fd, Instant deadline, std::string& out) {
  while (true) {
    const Millis left = time_left(deadline, SteadyClock::now());
    pollfd wait{fd, POLLIN, 0};
    if (retry_eintr([&] { return ::poll(&wait, 1, static_cast<int>(left.count())); }) <= 0) return false;
    char block[4096];
    const ssize_t n = retry_eintr([&] { return ::read(fd, block, sizeof block); });
    if (n <= 0) return true;
    out.append(block, static_cast<std::size_t>(n));
  }
}

}  // namespace

std::string describe(const GpuHold& hold, bool ended) {
  const std::string memory =
      hold.bytes == 0 ? "memory" : fmt::format("{:.1f} GiB", static_cast<double>(hold.bytes) / (1 << 30));
  return fmt::format("pid {} {} holds {} of GPU {} ({})", hold.pid, ended ? "has ended and still" : "still",
                     memory, hold.gpu, hold.uuid);
}

std::vector<std::string> wait_for_gpu_release(const GpuPaths& paths, std::span<const pid_t> workers,
                                              Millis patience) {
  if (workers.empty() || (paths.library.empty() && !has_gpu_driver(paths))) return {};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {errno_error("GPU memory: pipe", errno).message};
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t parent = ::getpid();
  const Instant deadline = SteadyClock::now() + patience;
  // The agent has one thread, so the child may use the library like any program.
  const pid_t child = ::fork();
  if (child < 0) return {errno_error("GPU memory: fork", errno).message};
  if (child == 0) run_child(paths, workers, deadline, writer.get(), parent);
  writer.reset();
  std::string text;
  const bool closed = read_until_closed(reader.get(), deadline + kDriverPatience, text);
  if (!closed) ::kill(child, SIGKILL);
  // One that hangs in the kernel does not die now: it is left to whoever reaps our children.
  retry_eintr([&] { return ::waitpid(child, nullptr, closed ? 0 : WNOHANG); });
  std::vector<std::string> out;
  bool done = false;
  for (std::string_view rest = text; !rest.empty();) {
    const auto end = std::min(rest.find('\n'), rest.size());
    if (rest.front() == kHeld) out.emplace_back(rest.substr(1, end - 1));
    if (rest.front() == kDone) done = true;
    rest.remove_prefix(std::min(rest.size(), end + 1));
  }
  if (!done)
    out.push_back(fmt::format("the GPU driver did not say within {:.0f} s who holds its memory",
                              std::chrono::duration<double>(patience + kDriverPatience).count()));
  return out;
}

}  // namespace muster::launcher
