// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/preflight.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kLeftover = 256 * kMiB;  // less is a context that is just being closed
constexpr std::uint64_t kDiskFull = 64 * kMiB;   // not even a failing job's last words
constexpr std::uint64_t kDiskScarce = 1024 * kMiB;
constexpr std::uint64_t kFilesFew = 1000;
constexpr std::size_t kMostUnfitBytes = 1000;  // it is in every other node's log
constexpr double kSlowCopy = 1.0;              // GiB/s; one core of this century does 5 and more

std::string name_of(const GpuReading& gpu) {
  return gpu.uuid.empty() ? fmt::format("GPU {}", gpu.index)
                          : fmt::format("GPU {} ({})", gpu.index, gpu.uuid);
}

void judge_gpu(const GpuReading& gpu, bool share, std::vector<Finding>& out) {
  const std::string name = name_of(gpu);
  if (gpu.lost) {
    out.push_back(
        {true, name + " cannot be opened: it has fallen off the bus or failed; see dmesg for its Xid"});
    return;
  }
  if (gpu.uncorrected_ecc > 0)
    out.push_back(
        {true, fmt::format("{} has {} uncorrected memory error{} since its driver was loaded; drain "
                           "the node and reset the GPU",
                           name, gpu.uncorrected_ecc, gpu.uncorrected_ecc == 1 ? "" : "s")});
  if (gpu.rows_failed)
    out.push_back({true, name + " has a broken memory row and no spare one left; it has to be replaced"});
  if (gpu.reset_wanted)
    out.push_back({false, name + " wants a reset to repair its memory (nvidia-smi -q -d ROW_REMAPPER)"});
  std::uint64_t known = 0;
  for (const GpuHolder& holder : gpu.holders) {
    known += holder.bytes;
    if (holder.bytes < kLeftover && holder.bytes != 0) continue;
    out.push_back({!share, fmt::format("{}: pid {} ({}) holds {} MiB of its memory", name, holder.pid,
                                       holder.program.empty() ? "of another container" : holder.program,
                                       holder.bytes / kMiB)});
  }
  if (gpu.used_bytes > known + 4 * kLeftover)
    out.push_back(
        {false, fmt::format("{}: {} MiB of its memory are in use and no process shows as their owner", name,
                            (gpu.used_bytes - known) / kMiB)});
}

void judge_links(const GpuReading& gpu, unsigned most_links, std::vector<Finding>& out) {
  const std::string name = name_of(gpu);
  if (gpu.pcie && gpu.pcie->width < gpu.pcie->most_width)
    out.push_back({false, fmt::format("{}: its PCIe link has {} of {} lanes", name, gpu.pcie->width,
                                      gpu.pcie->most_width)});
  if (gpu.pcie && gpu.full_speed && gpu.pcie->generation < gpu.pcie->most_generation)
    out.push_back({false, fmt::format("{}: its PCIe link runs at generation {} of {}", name,
                                      gpu.pcie->generation, gpu.pcie->most_generation)});
  // Boards without bridges have links, and none is active: that is seen beside others only.
  if ((gpu.links.active > 0 && gpu.links.inactive > 0) || gpu.links.active < most_links)
    out.push_back({false, fmt::format("{}: {} of {} NVLinks are active{}", name, gpu.links.active,
                                      gpu.links.active + gpu.links.inactive,
                                      gpu.links.active < most_links
                                          ? fmt::format(", of another GPU here {}", most_links)
                                          : "")});
  if ((gpu.throttle & (Nvml::kHardwareSlowdown | Nvml::kHardwareThermal | Nvml::kPowerBrake)) != 0)
    out.push_back(
        {true,
         fmt::format("{}: its clocks are cut by the hardware ({}); see nvidia-smi -q -d PERFORMANCE", name,
                     (gpu.throttle & Nvml::kPowerBrake) != 0        ? "power brake"
                     : (gpu.throttle & Nvml::kHardwareThermal) != 0 ? "temperature"
                                                                    : "temperature or power")});
  else if ((gpu.throttle & Nvml::kSoftwareThermal) != 0)
    out.push_back({false, name + ": its clocks are lowered because it is hot"});
}

/// An adapter may have ports that nobody uses: one line, a warning.
void judge_ports(const std::vector<PortReading>& ports, std::vector<Finding>& out) {
  std::string idle;
  std::size_t count = 0;
  for (const PortReading& port : ports) {
    if (port.state == "ACTIVE" || port.state.empty()) continue;
    ++count;
    idle += fmt::format("{}{} port {} ({}{}{})", idle.empty() ? "" : ", ", port.adapter, port.port,
                        port.state, port.physical.empty() ? "" : ", ", port.physical);
    if (port.state == "INIT") idle += ", which no subnet manager has set up";
  }
  if (count > 0)
    out.push_back({false, fmt::format("{} of {} InfiniBand or RoCE ports {} not active: {}{}", count,
                                      ports.size(), count == 1 ? "is" : "are", idle,
                                      count == ports.size() ? "; NCCL will use TCP" : "")});
}

void judge_disk(const DiskReading& disk, std::vector<Finding>& out) {
  if (!disk.writable) {
    out.push_back({true, fmt::format("{} ({}) cannot be written to", disk.path, disk.use)});
  } else if (disk.free_bytes < kDiskFull || disk.free_files < kFilesFew) {
    out.push_back({true, fmt::format("{} ({}) is full: {} MiB and {} files left", disk.path, disk.use,
                                     disk.free_bytes / kMiB, disk.free_files)});
  } else if (disk.free_bytes < kDiskScarce) {
    out.push_back(
        {false, fmt::format("{} ({}) has {} MiB left", disk.path, disk.use, disk.free_bytes / kMiB)});
  }
}

// What the child writes: one line per event, its first character tells which.
constexpr char kStep = '>', kUnfit = '!', kWarning = '?', kDone = '.';

void check(const PreflightJob& job, int out) {
  const auto tell = [&](char kind, std::string_view text) {
    if (!write_all(out, fmt::format("{}{}\n", kind, text))) ::_exit(1);
  };
  const Readings readings = take_readings(job, [&](std::string_view step) { tell(kStep, step); });
  for (const Finding& finding : judge(readings, job.share_gpus))
    tell(finding.unfit ? kUnfit : kWarning, finding.text);
  tell(kDone, "");
}

struct Progress {
  std::vector<Finding> findings;
  std::string step;
  bool done = false;

  void take(std::string_view line) {
    if (line.empty()) return;
    const std::string_view text = line.substr(1);
    switch (line.front()) {
      case kStep:
        step = text;
        break;
      case kDone:
        done = true;
        break;
      default:
        findings.push_back({line.front() == kUnfit, std::string(text)});
    }
  }
};

/// False: the deadline passed before the child closed its end.
bool read_lines(int fd, Instant deadline, Progress& progress) {
  std::string pending;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
    pollfd wait{fd, POLLIN, 0};
    const int ready =
        retry_eintr([&] { return ::poll(&wait, 1, std::max(0, static_cast<int>(left.count()))); });
    if (ready <= 0) return false;
    char block[4096];
    const ssize_t n = retry_eintr([&] { return ::read(fd, block, sizeof block); });
    if (n <= 0) return true;
    pending.append(block, static_cast<std::size_t>(n));
    for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      progress.take(std::string_view(pending).substr(0, end));
      pending.erase(0, end + 1);
    }
  }
}

}  // namespace

std::optional<Preflight> parse_preflight(std::string_view text) {
  if (text == "off") return Preflight::kOff;
  if (text == "quick") return Preflight::kQuick;
  if (text == "full") return Preflight::kFull;
  return std::nullopt;
}

std::vector<Finding> judge(const Readings& readings, bool share_gpus) {
  std::vector<Finding> out;
  if (!readings.driver_error.empty()) out.push_back({true, readings.driver_error});
  unsigned most_links = 0;
  for (const GpuReading& gpu : readings.gpus) most_links = std::max(most_links, gpu.links.active);
  for (const GpuReading& gpu : readings.gpus) {
    judge_gpu(gpu, share_gpus, out);
    if (!gpu.lost) judge_links(gpu, most_links, out);
  }
  judge_ports(readings.ports, out);
  for (const DiskReading& disk : readings.disks) judge_disk(disk, out);
  if (readings.descriptors < readings.descriptors_needed)
    out.push_back({true, fmt::format("{} open files are allowed (ulimit -Hn) and {} are needed",
                                     readings.descriptors, readings.descriptors_needed)});
  if (!readings.memory_lockable)
    out.push_back({false,
                   "an RDMA adapter is here, but locked memory is limited (ulimit -l); NCCL may fail to "
                   "register its buffers"});
  if (!readings.clock_synchronised)
    out.push_back({false, "the clock is not synchronised (no NTP): times in the logs of nodes will differ"});
  if (readings.copy_gib_per_s && *readings.copy_gib_per_s < kSlowCopy)
    out.push_back({false, fmt::format("memory copies run at {:.2f} GiB/s; is the CPU throttled or a memory "
                                      "module missing?",
                                      *readings.copy_gib_per_s)});
  return out;
}

std::string unfit_text(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) {
    if (!finding.unfit) continue;
    out += (out.empty() ? "" : "; ") + finding.text;
  }
  if (out.size() > kMostUnfitBytes) {
    out.resize(kMostUnfitBytes);
    out += " ...";
  }
  return out;
}

DriverLook look_at_driver(const GpuPaths& paths, std::chrono::milliseconds patience) {
  DriverLook out;
  if (!has_gpu_driver(paths)) return out;
  auto child = HelperProcess::start({.name = "job-driver"}, [&paths](int writer) {
    const auto nvml = paths.library.empty() ? Nvml::open() : Nvml::open(paths.library);
    if (nvml) (void)find_gpus(paths);
    (void)write_all(writer, "\n");
    if (nvml) ::pause();  // until it is killed
  });
  if (!child) {
    out.finding = Finding{true, child.error().message};
    return out;
  }
  pollfd answer{child->channel(), POLLIN, 0};
  if (retry_eintr([&] { return ::poll(&answer, 1, static_cast<int>(patience.count())); }) > 0)
    out.process.emplace(*std::move(child));
  else
    out.finding =
        Finding{true, fmt::format("the GPU driver (NVML) does not answer within {} s; does nvidia-smi?",
                                  static_cast<double>(patience.count()) / 1000)};
  return out;
}

std::vector<Finding> run_preflight(const PreflightJob& job, std::chrono::milliseconds patience) {
  const Instant deadline = SteadyClock::now() + patience;
  // A driver that does not answer holds its child and no more: it has no descriptor of ours.
  const auto child =
      HelperProcess::start({.name = "job-preflight"}, [&job](int channel) { check(job, channel); });
  if (!child) return {{true, "preflight: " + child.error().message}};
  Progress progress;
  const bool closed = read_lines(child->channel(), deadline, progress);
  // The channel may be closed while a dying driver still holds the process.
  const auto status = closed ? child->wait(deadline) : std::nullopt;
  if (!status) {
    progress.findings.push_back(
        {true, fmt::format("reading {} took more than {} s: a driver or a disk does not answer",
                           progress.step.empty() ? "anything" : progress.step,
                           static_cast<double>(patience.count()) / 1000)});
  } else if (!progress.done) {
    progress.findings.push_back(
        {true, fmt::format("the check died while reading {}{}", progress.step,
                           WIFSIGNALED(*status) ? fmt::format(" (signal {})", WTERMSIG(*status)) : "")});
  }
  return progress.findings;
}

}  // namespace muster::launcher
