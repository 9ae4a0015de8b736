// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_release.h"

#include <algorithm>
#include <fcntl.h>
#include <optional>
#include <time.h>
#include <unistd.h>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "launcher/hardware/nvml.h"
#include "launcher/process/helper_process.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kBetweenLooks{20};      // NVML has no event for it
constexpr Millis kDriverPatience{1000};  // beyond the wait itself
constexpr char kHeld = 'h';
constexpr char kDone = 'd';  // asked, or there is nobody to ask

/// Whose numbers NVML names; that none is another's is to be seen yet.
template <class Processes>
std::vector<GpuHold> holds_of(const Nvml& nvml, const Processes& ours) {
  std::vector<GpuHold> out;
  for (unsigned i = 0; i < nvml.count().value_or(0); ++i) {
    const Nvml::Device device = nvml.device(i);
    if (device == nullptr) continue;
    for (const Nvml::Process& process : nvml.processes(device)) {
      const auto pid = static_cast<pid_t>(process.pid);
      const auto found =
          std::find_if(ours.begin(), ours.end(), [&](const auto& our) { return our.mark.pid == pid; });
      if (found == ours.end()) continue;
      const auto now = mark_of(pid);
      if (now && found->mark.start_ticks != 0 && *now != found->mark) continue;  // a stranger by its number
      out.push_back({i, nvml.uuid(device), pid, process.bytes, found->worker, !now});
    }
  }
  return out;
}

/// In the child.
template <class Processes>
void ask(const GpuPaths& paths, const Processes& ours, Instant deadline, int out) {
  if (const auto nvml = paths.library.empty() ? Nvml::open() : Nvml::open(paths.library)) {
    std::vector<GpuHold> holds = holds_of(*nvml, ours);
    while (!holds.empty() && SteadyClock::now() < deadline) {
      const timespec pause{0, std::chrono::nanoseconds(kBetweenLooks).count()};
      ::nanosleep(&pause, nullptr);
      holds = holds_of(*nvml, ours);
    }
    for (const GpuHold& hold : holds) (void)write_all(out, fmt::format("{}{}\n", kHeld, describe(hold)));
  }
  (void)write_all(out, fmt::format("{}\n", kDone));
}

/// What the child wrote, as lines for the log.
std::vector<std::string> lines_of(std::string_view text, Millis patience) {
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

}  // namespace

std::string describe(const GpuHold& hold) {
  const std::string memory =
      hold.bytes == 0 ? "memory" : fmt::format("{:.1f} GiB", static_cast<double>(hold.bytes) / (1 << 30));
  return fmt::format("pid {}{} {} holds {} of GPU {} ({})", hold.pid,
                     hold.worker ? "" : ", which a worker started,",
                     hold.ended ? "has ended and still" : "still", memory, hold.gpu, hold.uuid);
}

/// Kept by its handlers until they have run; `over` once nobody wants to know.
struct GpuRelease::Wait : std::enable_shared_from_this<GpuRelease::Wait> {
  Wait(boost::asio::io_context& io, HelperProcess child, Millis given, Done then)
      : process(std::move(child)), output(io), deadline(io), patience(given), done(std::move(then)) {}

  void begin() {
    output.assign(::fcntl(process->channel(), F_DUPFD_CLOEXEC, 0));
    deadline.expires_after(patience + kDriverPatience);
    deadline.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error) self->finish();
    });
    read();
  }

  void read() {
    output.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [self = shared_from_this()](boost::system::error_code error) {
                        if (self->over) return;
                        if (error || self->take()) return self->finish();
                        self->read();
                      });
  }

  /// True: the child has closed its end.
  bool take() {
    while (true) {
      char block[4096];
      const ssize_t n = retry_eintr([&] { return ::read(process->channel(), block, sizeof block); });
      if (n <= 0) return n == 0 || errno != EAGAIN;
      text.append(block, static_cast<std::size_t>(n));
    }
  }

  void finish() {
    if (over) return;
    close();
    done(lines_of(text, patience));
  }

  void close() {
    over = true;
    boost::system::error_code ignored;
    deadline.cancel();
    output.close(ignored);
    process.reset();
  }

  std::optional<HelperProcess> process;
  boost::asio::posix::stream_descriptor output;
  boost::asio::steady_timer deadline;
  Millis patience;
  Done done;
  std::string text;
  bool over = false;
};

GpuRelease::GpuRelease(boost::asio::io_context& io, GpuPaths paths, bool enabled)
    : io_(io), paths_(std::move(paths)), enabled_(enabled) {}

GpuRelease::~GpuRelease() {
  cancel();
}

void GpuRelease::cancel() {
  if (const auto wait = std::exchange(wait_, nullptr)) wait->close();
}

void GpuRelease::add(const ProcessMark& mark, bool worker) {
  const auto known = std::find_if(processes_.begin(), processes_.end(),
                                  [&](const Process& process) { return process.mark.pid == mark.pid; });
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
  for (const ProcessMark& mark : descendants.look()) add(mark, false);
}

bool GpuRelease::begin(Millis patience, Done done) {
  if (!enabled_ || processes_.empty() || (paths_.library.empty() && !has_gpu_driver(paths_))) return false;
  const Instant deadline = SteadyClock::now() + patience;
  auto child = HelperProcess::start({.name = "job-gpu-free"},
                                    [this, deadline](int out) { ask(paths_, processes_, deadline, out); });
  if (!child) {
    done({child.error().message});
    return true;
  }
  wait_ = std::make_shared<Wait>(io_, *std::move(child), patience, std::move(done));
  wait_->begin();
  return true;
}

}  // namespace muster::launcher
