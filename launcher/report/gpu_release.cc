// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_release.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/socket.h>
#include <time.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/report/gpu_holders.h"
#include "rendezvous/base/archive.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kBetweenLooks{20};      // NVML has no event for it
constexpr Millis kReleaseTimeout{1000};  // beyond the wait itself
constexpr std::size_t kMostHolds = 500;  // that are told of
constexpr std::size_t kMostReleaseBytes = 256 * 1024;

}  // namespace

GpuRelease::GpuRelease(boost::asio::io_context& io, GpuPaths paths, bool enabled)
    : paths_(std::move(paths)), enabled_(enabled), output_(io), deadline_(io) {}

void GpuRelease::add(const ProcessMark& mark, bool worker) {
  const auto known =
      std::ranges::find_if(processes_, [&](const Process& process) { return process.mark.pid == mark.pid; });
  if (known == processes_.end()) {
    processes_.push_back({mark, worker});
  } else if (known->mark != mark && !known->worker) {
    known->mark = mark;  // the number is given again, to another one of ours
  }
}

void GpuRelease::started(pid_t worker) {
  if (enabled_ && worker > 0) add(mark_of(worker).value_or(ProcessMark{worker}), true);
}

void GpuRelease::look(const Descendants& descendants) {
  if (!enabled_) return;
  for (const ProcessStat& process : descendants.look()) add({process.pid, process.start_ticks}, false);
}

/// Of our processes, by the numbers that NVML lists, a line for each: "pid 77, which a worker started, has
/// ended and still holds 71.2 GiB of GPU 3 (GPU-5a..)".
std::vector<std::string> GpuRelease::holds(const Nvml& nvml) const {
  std::vector<std::string> out;
  for (const GpuUse& use : gpu_uses(nvml)) {
    const auto found =
        std::ranges::find_if(processes_, [&](const Process& our) { return our.mark.pid == use.pid; });
    if (found == processes_.end()) continue;
    const auto now = mark_of(use.pid);
    // The number may belong to another process by now.
    if (now && found->mark.start_ticks != 0 && *now != found->mark) continue;
    out.push_back(fmt::format("pid {}{} {} {}", use.pid, found->worker ? "" : ", which a worker started,",
                              now ? "still" : "has ended and still", describe(use)));
  }
  return out;
}

/// In the helper process. One message: a line for each hold, none also where there is nobody to ask.
void GpuRelease::ask(Instant deadline, int out) const {
  std::vector<std::string> held;
  if (const auto nvml = Nvml::open(paths_.library)) {
    held = holds(*nvml);
    while (!held.empty() && SteadyClock::now() < deadline) {
      const timespec pause{0, std::chrono::nanoseconds(kBetweenLooks).count()};
      ::nanosleep(&pause, nullptr);
      held = holds(*nvml);
    }
  }
  held.resize(std::min(held.size(), kMostHolds));
  std::string bytes;
  ArchiveWriter{bytes}(held);
  (void)::send(out, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

bool GpuRelease::begin(Millis timeout, Done done) {
  if (!enabled_ || processes_.empty() || !has_gpu_driver(paths_)) return false;
  const Instant deadline = SteadyClock::now() + timeout;
  auto helper = HelperProcess::start({.name = "job-gpu-free", .socket_type = SOCK_SEQPACKET},
                                     [this, deadline](int out) { ask(deadline, out); });
  if (!helper) {
    done({helper.error().message});
    return true;
  }
  helper_.emplace(*std::move(helper));
  timeout_ = timeout;
  done_ = std::move(done);
  output_.assign(::fcntl(helper_->channel(), F_DUPFD_CLOEXEC, 0));
  lifetime_.call_at(deadline_, deadline + kReleaseTimeout, [this] { finish(); });
  lifetime_.when_readable(output_, [this] { finish(); });
  return true;
}

void GpuRelease::finish() {
  std::vector<std::string> lines;
  std::string bytes(kMostReleaseBytes, '\0');
  const ssize_t n = retry_eintr([&] { return ::recv(helper_->channel(), bytes.data(), bytes.size(), 0); });
  if (n > 0)
    ArchiveReader{std::string_view(bytes).substr(0, static_cast<std::size_t>(n))}(lines);
  else
    lines.push_back(fmt::format("the GPU driver did not tell within {:.0f} s which processes hold its memory",
                                std::chrono::duration<double>(timeout_ + kReleaseTimeout).count()));
  const Done done = std::move(done_);
  cancel();
  done(std::move(lines));
}

void GpuRelease::cancel() {
  lifetime_.renew();
  boost::system::error_code ignored;
  output_.close(ignored);
  deadline_.cancel();
  helper_.reset();
}

}  // namespace muster::launcher
