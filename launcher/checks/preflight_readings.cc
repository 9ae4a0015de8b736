// SPDX-License-Identifier: Apache-2.0
// The reading half of preflight.h.
#include <algorithm>
#include <cstring>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/checks/preflight.h"
#include "launcher/hardware/device_choice.h"
#include "launcher/hardware/nvml.h"
#include "launcher/hardware/pci_place.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/env_contract.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{64} << 20;  // more than any cache of a core's share
constexpr int kCopies = 8;

GpuReading read_gpu(const Nvml& nvml, int index) {
  GpuReading out;
  out.index = index;
  const Nvml::Device device = nvml.device(static_cast<unsigned>(index));
  out.lost = device == nullptr;
  if (out.lost) return out;
  out.uuid = nvml.uuid(device);
  out.used_bytes = nvml.used_bytes(device).value_or(0);
  for (const Nvml::Process& process : nvml.processes(device))
    out.holders.push_back(
        {process.pid, process.bytes, first_line(fmt::format("/proc/{}/comm", process.pid))});
  out.uncorrected_ecc = nvml.uncorrected_ecc_errors(device).value_or(0);
  if (const auto rows = nvml.remapped_rows(device)) {
    out.rows_failed = rows->failed;
    out.reset_wanted = rows->pending;
  }
  if (nvml.retired_pages_pending(device).value_or(false)) out.reset_wanted = true;
  out.pcie = nvml.pcie_link(device);
  out.full_speed = nvml.performance_state(device) == 0U;
  out.throttle = nvml.throttle_reasons(device).value_or(0);
  out.links = nvml.nv_links(device);
  return out;
}

std::vector<int> visible_gpus(const PreflightJob& job) {
  std::vector<int> out;
  const std::vector<Gpu> gpus = find_gpus(job.gpu_paths);
  for (const Device& device : visible_devices(gpus, job.visible_devices))
    out.push_back(gpus[device.gpu].index);
  return out;
}

/// The directory, or the deepest one above it that exists.
std::string existing(std::string path) {
  while (::access(path.c_str(), F_OK) != 0) {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    path.resize(slash == 0 ? 1 : slash);
  }
  return path;
}

void read_gpus(const PreflightJob& job, Readings& out) {
  if (!has_gpu_driver(job.gpu_paths)) return;
  const auto nvml = job.gpu_paths.library.empty() ? Nvml::open() : Nvml::open(job.gpu_paths.library);
  if (!nvml) {
    out.driver_error = nvml.error().message;
    return;
  }
  for (const int index : job.gpus ? *job.gpus : visible_gpus(job)) out.gpus.push_back(read_gpu(*nvml, index));
}

void read_disk(DiskReading& disk) {
  struct statvfs state {};
  disk.writable = ::access(disk.path.c_str(), W_OK) == 0 && ::statvfs(disk.path.c_str(), &state) == 0;
  if (!disk.writable) return;
  disk.free_bytes = static_cast<std::uint64_t>(state.f_bavail) * state.f_frsize;
  // Some file systems (btrfs) make room for files as they are needed and say 0 of 0.
  disk.free_files = state.f_files == 0 ? UINT64_MAX : state.f_favail;
}

/// "ACTIVE" of "4: ACTIVE".
std::string word_of(const std::string& line) {
  const auto colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

bool memory_lockable(const std::string& rdma) {
  if (list_directory(rdma).empty()) return true;
  rlimit limit{};
  return ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
}

bool clock_synchronised() {
  timex state{};
  const int result = ::adjtimex(&state);
  return result < 0 || (state.status & STA_UNSYNC) == 0;
}

/// The best of some copies, so that a moment's guest on this core does not count.
double copy_gib_per_s() {
  std::vector<char> from(kCopyBytes, 1), to(kCopyBytes, 2);
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    const Instant begin = SteadyClock::now();
    std::memcpy(to.data(), from.data(), kCopyBytes);
    const std::chrono::duration<double> seconds = SteadyClock::now() - begin;
    from[0] = to[kCopyBytes - 1];  // the copies are needed
    best = std::max(best, static_cast<double>(kCopyBytes) / static_cast<double>(1U << 30) / seconds.count());
  }
  return best;
}

}  // namespace

PreflightJob plan_preflight(Preflight level, const Job& job, bool share_gpus,
                            const Environment& environment) {
  PreflightJob out;
  out.level = level;
  out.gpu_paths = gpu_paths(environment);
  out.workers = job.local_world_size;
  out.share_gpus = share_gpus;
  if (!job.placement.empty()) {
    out.gpus.emplace();
    for (const RankPlacement& rank : job.placement)
      if (rank.gpu && std::find(out.gpus->begin(), out.gpus->end(), rank.gpu->index) == out.gpus->end())
        out.gpus->push_back(rank.gpu->index);
  }
  if (!job.visible_devices.empty())
    out.visible_devices = job.visible_devices;
  else if (const auto visible = lookup(environment, env::kCudaVisible))
    out.visible_devices = *visible;
  DiskReading logs;
  logs.use = "logs";
  if (job.logs.directory) {
    logs.path = *job.logs.directory;
  } else {
    const std::string_view tmp = lookup(environment, "TMPDIR").value_or("");
    logs.path = tmp.empty() ? "/tmp" : std::string(tmp);
  }
  if (logs.path != "/dev/null") out.disks.push_back(logs);
  if (::access("/dev/shm", F_OK) == 0) {
    DiskReading shared;
    shared.path = "/dev/shm";
    shared.use = "memory that processes share";
    out.disks.push_back(shared);
  }
  return out;
}

std::vector<PortReading> read_ports(const std::string& directory) {
  std::vector<PortReading> out;
  for (const std::string& adapter : list_directory(directory)) {
    const std::string ports = fmt::format("{}/{}/ports", directory, adapter);
    for (const std::string& port : list_directory(ports))
      out.push_back({adapter, port, word_of(first_line(fmt::format("{}/{}/state", ports, port))),
                     word_of(first_line(fmt::format("{}/{}/phys_state", ports, port)))});
  }
  return out;
}

Readings take_readings(const PreflightJob& job, const std::function<void(std::string_view)>& say) {
  Readings out;
  say("the GPUs (NVML)");
  read_gpus(job, out);
  say("the ports of InfiniBand");
  out.ports = read_ports(job.rdma);
  out.disks = job.disks;
  for (DiskReading& disk : out.disks) {
    say(disk.path);
    disk.path = existing(std::move(disk.path));
    read_disk(disk);
  }
  say("limits and the clock");
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  out.descriptors = limit.rlim_max;
  out.descriptors_needed = static_cast<std::uint64_t>(job.workers) * 4 + 64;
  out.memory_lockable = memory_lockable(job.rdma);
  out.clock_synchronised = clock_synchronised();
  if (job.level == Preflight::kFull) {
    say("the memory's speed");
    out.copy_gib_per_s = copy_gib_per_s();
  }
  return out;
}

}  // namespace muster::launcher
