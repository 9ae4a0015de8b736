// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_watch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <new>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <variant>

#include <fmt/format.h>

#include "launcher/report/kernel_log.h"
#include "rendezvous/base/archive.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kEventWait{5000};  // of one call; an event ends it at once
constexpr int kMostFailures = 30;   // of waits in a row, a second apart: the driver will not recover
constexpr std::size_t kMostEventsSent = 64;
constexpr std::size_t kMostWatchBytes = 256 * 1024;
constexpr Millis kBetweenReadings{1000};       // NVML's own figures are means of up to a second
constexpr Millis kLookedAt{60'000};            // after a look: as long as most scrape intervals
constexpr std::size_t kMostHoldersSent = 128;  // a message holds the command lines of as many
constexpr char kAskFigures = 'f', kAskHolders = 'h';

/// From the child: all GPUs, and then each event, and who holds the GPUs.
using Message = std::variant<std::vector<Gpu>, std::string, std::vector<GpuHolder>>;

/// Where nobody reads, the channel is full of the first ones, which count.
void tell(int out, const Message& message) {
  const std::string bytes = to_archive(message);
  (void)::send(out, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

/// Written by the child alone, read by the agent without a lock: an odd sequence is a page that is being
/// written.
struct GpuWatch::Page {
  std::atomic<std::uint32_t> sequence;
  std::uint32_t count;  // 0: nothing was read yet
  std::int64_t at_ns;   // of the steady clock, which all processes of a host share
  Nvml::Figures gpus[kMostGpus];
};

void GpuWatch::Unmap::operator()(Page* page) const {
  ::munmap(page, sizeof(Page));
}

namespace {

/// In the child. NVML waits for events in a thread of its own, since nothing else ends its wait.
class GpuServer {
 public:
  GpuServer(const Nvml& nvml, const std::vector<Gpu>& gpus, int channel)
      : nvml_(nvml), gpus_(gpus), channel_(channel) {
    for (unsigned i = 0; i < nvml.count().value_or(0); ++i) devices_.push_back(nvml.device(i));
    events_ = nvml.watch_xids(devices_);
    if (events_ != nullptr) std::thread([this] { wait_for_xids(); }).detach();  // ends with the process
  }

  /// Until the agent is gone. `write` puts figures into the page.
  void serve(const std::function<void(const std::vector<Nvml::Figures>&)>& write) {
    Instant looked_at_until{}, next{};
    while (true) {
      const bool looked_at = SteadyClock::now() < looked_at_until;
      if (wait_until_ready(channel_, POLLIN, looked_at ? next : Instant::max())) {
        char what = 0;
        if (retry_eintr([&] { return ::recv(channel_, &what, 1, 0); }) != 1) return;
        if (what == kAskHolders) tell(channel_, holders());
        if (what == kAskFigures) looked_at_until = SteadyClock::now() + kLookedAt;
      }
      const Instant now = SteadyClock::now();
      if (now >= looked_at_until || now < next) continue;
      next = now + kBetweenReadings;
      write(read());
    }
  }

 private:
  std::vector<Nvml::Figures> read() const {
    std::vector<Nvml::Figures> out;
    for (std::size_t i = 0; i < std::min(devices_.size(), GpuWatch::kMostGpus); ++i) {
      out.push_back(devices_[i] == nullptr ? Nvml::Figures{} : nvml_.figures(devices_[i]));
      if (events_ != nullptr) out.back().xid = xids_[i];
    }
    return out;
  }

  std::vector<GpuHolder> holders() const {
    std::vector<GpuHolder> out = find_gpu_holders(nvml_);
    if (out.size() > kMostHoldersSent) out.resize(kMostHoldersSent);
    return out;
  }

  void wait_for_xids() {
    for (int failures = 0; failures < kMostFailures;) {
      const Nvml::Wait wait = nvml_.wait_for_xid(events_, kEventWait);
      if (wait.failed) {
        ++failures;
        const timespec pause{1, 0};
        ::nanosleep(&pause, nullptr);
        continue;
      }
      failures = 0;
      if (!wait.xid) continue;
      const auto device = std::ranges::find(devices_, wait.xid->device);
      const auto index = static_cast<std::size_t>(device - devices_.begin());
      if (index < xids_.size()) xids_[index] = wait.xid->number;
      tell(channel_,
           xid_line(index < gpus_.size() ? gpus_[index] : Gpu{}, wait.xid->number, wait.xid->instance));
    }
  }

  const Nvml& nvml_;
  const std::vector<Gpu>& gpus_;
  int channel_;
  std::vector<Nvml::Device> devices_;
  Nvml::EventSet events_ = nullptr;  // nullptr: there are none
  std::array<std::atomic<int>, GpuWatch::kMostGpus> xids_{};
};

}  // namespace

void serve_gpus(const GpuPaths& paths, GpuWatch::Page& page, int channel) {
  // Kept open while the GPUs are listed: without persistence mode the driver would begin twice.
  const auto nvml = Nvml::open(paths.library);
  const std::vector<Gpu> gpus = find_gpus(paths);
  tell(channel, gpus);
  if (!nvml) return;
  GpuServer server(*nvml, gpus, channel);
  server.serve([&page](const std::vector<Nvml::Figures>& figures) {
    ++page.sequence;
    std::ranges::copy(figures, page.gpus);
    page.count = static_cast<std::uint32_t>(figures.size());
    page.at_ns = SteadyClock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    ++page.sequence;
  });
  ::_exit(0);  // with the thread that waits for events
}

std::string xid_line(const Gpu& gpu, int number, std::optional<unsigned> instance) {
  std::string address = gpu.pci.substr(0, gpu.pci.rfind('.'));  // the driver leaves out the function
  if (instance) address += fmt::format(" GPU-I:{:02}", *instance);
  const std::string_view meaning = meaning_of_xid(number).text;
  return fmt::format("NVML: Xid (PCI:{}): {}, {}{}", address, number,
                     meaning.empty() ? "which NVIDIA's \"XID Errors\" explains" : meaning,
                     gpu.uuid.empty() ? "" : fmt::format(" ({})", gpu.uuid));
}

Result<GpuWatch> GpuWatch::start(const GpuPaths& paths) {
  void* memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(errno_error("mmap for the GPUs' figures", errno));
  std::unique_ptr<Page, Unmap> page(new (memory) Page{});
  MUSTER_TRY(HelperProcess process,
             HelperProcess::start({.name = "job-gpus", .socket_type = SOCK_SEQPACKET},
                                  [&](int channel) { serve_gpus(paths, *page, channel); }));
  return GpuWatch(std::move(page), std::move(process));
}

/// The next message. False: there is none now.
bool GpuWatch::read_one() {
  if (closed_) return false;
  std::string bytes(kMostWatchBytes, '\0');
  const ssize_t n = retry_eintr([&] { return ::recv(process_.channel(), bytes.data(), bytes.size(), 0); });
  if (n <= 0) {
    closed_ = n == 0 || errno != EAGAIN;
    return false;
  }
  Message message;
  ArchiveReader{std::string_view(bytes).substr(0, static_cast<std::size_t>(n))}(message);
  if (const auto* gpus = std::get_if<std::vector<Gpu>>(&message))
    gpus_ = *gpus;
  else if (auto* holders = std::get_if<std::vector<GpuHolder>>(&message))
    holders_ = std::move(*holders);
  else if (events_.size() < kMostEventsSent)
    events_.push_back(std::get<std::string>(message));
  return true;
}

const std::optional<std::vector<Gpu>>& GpuWatch::gpus() {
  while (!gpus_ && read_one()) {
  }
  return gpus_;
}

std::vector<std::string> GpuWatch::take_new() {
  while (read_one()) {
  }
  return std::exchange(events_, {});
}

void GpuWatch::ask_holders() {
  holders_.reset();
  holders_asked_ = !closed_ && ::send(process_.channel(), &kAskHolders, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

const std::optional<std::vector<GpuHolder>>& GpuWatch::holders() {
  while (owes_holders() && read_one()) {
  }
  return holders_;
}

std::optional<GpuWatch::Readings> GpuWatch::figures(Instant now) {
  if (!closed_ && now - asked_ >= kBetweenReadings) {
    asked_ = now;
    (void)::send(process_.channel(), &kAskFigures, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  for (int tries = 0; tries < 3; ++tries) {  // one is enough unless it is written just now
    const std::uint32_t before = page_->sequence;
    Readings out;
    out.gpus.assign(page_->gpus, page_->gpus + std::min<std::size_t>(page_->count, kMostGpus));
    out.at = Instant(std::chrono::nanoseconds(page_->at_ns));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 != 0 || before != page_->sequence) continue;
    if (out.gpus.empty()) return std::nullopt;
    return out;
  }
  return std::nullopt;
}

}  // namespace muster::launcher
