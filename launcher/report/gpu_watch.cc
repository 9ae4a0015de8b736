// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_watch.h"

#include <algorithm>
#include <sys/socket.h>
#include <time.h>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "launcher/hardware/nvml.h"
#include "launcher/report/kernel_log.h"
#include "rendezvous/base/archive.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kEventWait{5000};  // of one call; an event ends it at once
constexpr int kMostFailures = 30;   // of waits in a row, a second apart: the driver will not recover
constexpr std::size_t kMostEvents = 64;
constexpr std::size_t kMostBytes = 256 * 1024;

/// From the child: all GPUs, and then each event.
using Message = std::variant<std::vector<Gpu>, std::string>;

/// Where nobody reads, the channel is full of the first ones, which count.
void tell(int out, const Message& message) {
  std::string bytes;
  ArchiveWriter{bytes}(message);
  (void)::send(out, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/// In the child.
void watch_gpus(const GpuPaths& paths, int out) {
  // Kept open while the GPUs are listed: without persistence mode the driver would begin twice.
  const auto nvml = Nvml::open(paths.library);
  const std::vector<Gpu> gpus = find_gpus(paths);
  tell(out, gpus);
  if (!nvml) return;
  std::vector<Nvml::Device> devices;
  for (unsigned i = 0; i < nvml->count().value_or(0); ++i) devices.push_back(nvml->device(i));
  const Nvml::EventSet events = nvml->watch_xids(devices);
  if (events == nullptr) return;
  for (int failures = 0; failures < kMostFailures;) {
    const Nvml::Wait wait = nvml->wait_for_xid(events, kEventWait);
    if (wait.failed) {
      ++failures;
      const timespec pause{1, 0};
      ::nanosleep(&pause, nullptr);
      continue;
    }
    failures = 0;
    if (!wait.xid) continue;
    const auto device = std::find(devices.begin(), devices.end(), wait.xid->device);
    const auto index = static_cast<std::size_t>(device - devices.begin());
    tell(out, xid_line(index < gpus.size() ? gpus[index] : Gpu{}, wait.xid->number, wait.xid->instance));
  }
}

}  // namespace

std::string xid_line(const Gpu& gpu, int number, std::optional<unsigned> instance) {
  std::string address = gpu.pci.substr(0, gpu.pci.rfind('.'));  // the driver leaves out the function
  if (instance) address += fmt::format(" GPU-I:{:02}", *instance);
  const std::string_view meaning = meaning_of_xid(number);
  return fmt::format("NVML: Xid (PCI:{}): {}, {}{}", address, number,
                     meaning.empty() ? "which NVIDIA's \"XID Errors\" explains" : meaning,
                     gpu.uuid.empty() ? "" : fmt::format(" ({})", gpu.uuid));
}

Result<GpuWatch> GpuWatch::start(const GpuPaths& paths) {
  MUSTER_TRY(HelperProcess process, HelperProcess::start({.name = "job-gpus", .socket_type = SOCK_SEQPACKET},
                                                         [&paths](int out) { watch_gpus(paths, out); }));
  return GpuWatch(std::move(process));
}

/// The next message. False: there is none now.
bool GpuWatch::read_one() {
  if (closed_) return false;
  std::string bytes(kMostBytes, '\0');
  const ssize_t n = retry_eintr([&] { return ::recv(process_.channel(), bytes.data(), bytes.size(), 0); });
  if (n <= 0) {
    closed_ = n == 0 || errno != EAGAIN;
    return false;
  }
  Message message;
  ArchiveReader{std::string_view(bytes).substr(0, static_cast<std::size_t>(n))}(message);
  if (const auto* gpus = std::get_if<std::vector<Gpu>>(&message))
    gpus_ = *gpus;
  else if (events_.size() < kMostEvents)
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

}  // namespace muster::launcher
