// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_watch.h"

#include <algorithm>
#include <fcntl.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>
#include <utility>

#include <climits>
#include <fmt/format.h>

#include "launcher/hardware/nvml.h"
#include "launcher/report/kernel_log.h"
#include "launcher/text/split.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kEventWait{5000};  // of one call; an event ends it at once
constexpr int kMostFailures = 30;   // of waits in a row, a second apart: the driver will not recover
constexpr std::size_t kMostEvents = 64;
constexpr char kGpu = 'g', kListed = 'l', kEvent = 'x';

void write_line(int out, char kind, std::string_view text) {
  // A line is less than PIPE_BUF. Where nobody reads, the pipe is full of the first ones, which count.
  (void)write_all(out, fmt::format("{}{}\n", kind, text));
}

/// In the child.
void watch_gpus(const GpuPaths& paths, int out) {
  // Kept open while the GPUs are listed: without persistence mode the driver would begin twice.
  const auto nvml = Nvml::open(paths.library);
  const std::vector<Gpu> gpus = find_gpus(paths);
  std::string list;  // in one piece: who reads a part of it finds the rest
  for (const Gpu& gpu : gpus) list += fmt::format("{}{}\n", kGpu, gpu_line(gpu));
  (void)write_all(out, fmt::format("{}{}\n", list, kListed));
  if (!nvml) return;
  std::vector<Nvml::Device> devices;
  for (unsigned i = 0; i < nvml->count().value_or(0); ++i) devices.push_back(nvml->device(i));
  const Nvml::EventSet events = nvml->watch_xids(devices);
  if (events == nullptr) return;
  ::fcntl(out, F_SETFL, O_NONBLOCK);
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
    write_line(out, kEvent,
               xid_line(index < gpus.size() ? gpus[index] : Gpu{}, wait.xid->number, wait.xid->instance));
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

std::string gpu_line(const Gpu& gpu) {
  return fmt::format("{}\t{}\t{}\t{}", gpu.index, gpu.uuid, gpu.pci, fmt::join(gpu.slices, ","));
}

std::optional<Gpu> parse_gpu_line(std::string_view line) {
  const std::vector<std::string_view> fields = split(line, '\t');
  if (fields.size() != 4) return std::nullopt;
  Gpu out;
  const auto index = parse_integer("", fields[0], 0, INT_MAX);
  if (!index) return std::nullopt;
  out.index = static_cast<int>(*index);
  out.uuid = fields[1];
  out.pci = fields[2];
  if (!fields[3].empty())
    for (const std::string_view slice : split(fields[3], ',')) out.slices.emplace_back(slice);
  return out;
}

Result<GpuWatch> GpuWatch::start(const GpuPaths& paths) {
  MUSTER_TRY(HelperProcess process,
             HelperProcess::start({.name = "job-gpus"}, [&paths](int out) { watch_gpus(paths, out); }));
  return GpuWatch(std::move(process));
}

void GpuWatch::take(std::string_view line) {
  if (line.empty()) return;
  const std::string_view text = line.substr(1);
  if (line.front() == kGpu) {
    if (auto gpu = parse_gpu_line(text)) found_.push_back(*std::move(gpu));
  } else if (line.front() == kListed) {
    gpus_ = std::move(found_);
  } else if (line.front() == kEvent && events_.size() < kMostEvents) {
    events_.emplace_back(text);
  }
}

/// What is there now. False: nothing was.
bool GpuWatch::read_some() {
  if (closed_) return false;
  char block[4096];
  const ssize_t n = retry_eintr([&] { return ::read(process_.channel(), block, sizeof block); });
  if (n <= 0) {
    closed_ = n == 0 || errno != EAGAIN;
    return false;
  }
  splitter_.feed({block, static_cast<std::size_t>(n)}, [this](std::string_view line) { take(line); });
  return true;
}

const std::optional<std::vector<Gpu>>& GpuWatch::gpus() {
  while (!gpus_ && read_some()) {
  }
  return gpus_;
}

std::vector<std::string> GpuWatch::take_new() {
  while (read_some()) {
  }
  return std::exchange(events_, {});
}

}  // namespace muster::launcher
