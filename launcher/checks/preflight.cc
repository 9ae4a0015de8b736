// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/preflight.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <poll.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/hardware/cores.h"
#include "launcher/hardware/device_choice.h"
#include "launcher/hardware/small_files.h"
#include "launcher/text/line_splitter.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kLeftover = 256 * kMiB;  // less is a context that is just being closed
constexpr std::uint64_t kDiskFull = 64 * kMiB;   // not even a failing job's last words
constexpr std::uint64_t kDiskLow = 1024 * kMiB;
constexpr std::uint64_t kFilesFew = 1000;
constexpr std::size_t kMostErrorBytes = 1000;  // it is in every other node's log

/// `Any`: Gpu or Nvml::GpuHealth.
template <class Any>
std::string gpu_name(const Any& gpu) {
  return fmt::format("GPU {}{}", gpu.index, gpu.uuid.empty() ? "" : fmt::format(" ({})", gpu.uuid));
}

/// What a check has found so far.
struct Findings {
  std::vector<Finding> all;

  template <class... Arguments>
  void error(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    all.push_back({true, fmt::format(text, std::forward<Arguments>(arguments)...)});
  }
  template <class... Arguments>
  void warn(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    all.push_back({false, fmt::format(text, std::forward<Arguments>(arguments)...)});
  }
};

void judge_gpu(const Nvml::GpuHealth& gpu, bool share, Findings& out) {
  const std::string name = gpu_name(gpu);
  if (gpu.uncorrected_ecc > 0)
    out.error("{} has {} since its driver was loaded; drain the node and reset the GPU", name,
              counted(gpu.uncorrected_ecc, "uncorrected memory error"));
  if (gpu.rows_failed)
    out.error("{} has a broken memory row and no spare one left; it has to be replaced", name);
  if (gpu.reset_wanted)
    out.warn("{} needs a reset to repair its memory (nvidia-smi -q -d ROW_REMAPPER)", name);
  std::uint64_t known = 0;
  for (const Nvml::Process& holder : gpu.holders) {
    known += holder.bytes;
    if (holder.bytes < kLeftover && holder.bytes != 0) continue;
    out.all.push_back({!share, fmt::format("{}: pid {} ({}) holds {} MiB of its memory", name, holder.pid,
                                           holder.program.empty() ? "of another container" : holder.program,
                                           holder.bytes / kMiB)});
  }
  if (gpu.used_bytes > known + 4 * kLeftover)
    out.warn("{}: {} MiB of its memory are in use, but no process is listed as their owner", name,
             (gpu.used_bytes - known) / kMiB);
}

void judge_links(const Nvml::GpuHealth& gpu, unsigned most_links, Findings& out) {
  const std::string name = gpu_name(gpu);
  if (gpu.pcie && gpu.pcie->width < gpu.pcie->most_width)
    out.warn("{}: its PCIe link has {} of {} lanes", name, gpu.pcie->width, gpu.pcie->most_width);
  if (gpu.pcie && gpu.full_speed && gpu.pcie->generation < gpu.pcie->most_generation)
    out.warn("{}: its PCIe link runs at generation {} of {}", name, gpu.pcie->generation,
             gpu.pcie->most_generation);
  // Boards without bridges have links, and none is active: that is seen beside others only.
  const bool fewer = gpu.links.active < most_links;
  if ((gpu.links.active > 0 && gpu.links.inactive > 0) || fewer)
    out.warn("{}: {} of {} NVLinks are active{}", name, gpu.links.active,
             gpu.links.active + gpu.links.inactive,
             fewer ? fmt::format("; another GPU of this node has {}", most_links) : "");
  if ((gpu.throttle & (Nvml::kHardwareSlowdown | Nvml::kHardwareThermal | Nvml::kPowerBrake)) != 0)
    out.error("{}: the hardware throttles its clocks ({}); see nvidia-smi -q -d PERFORMANCE", name,
              (gpu.throttle & Nvml::kPowerBrake) != 0        ? "power brake"
              : (gpu.throttle & Nvml::kHardwareThermal) != 0 ? "temperature"
                                                             : "temperature or power");
  else if ((gpu.throttle & Nvml::kSoftwareThermal) != 0)
    out.warn("{}: its clocks are lowered because it is hot", name);
}

/// An adapter may have ports that nobody uses: one line, a warning.
void judge_ports(const std::vector<PortReading>& ports, Findings& out) {
  std::vector<std::string> idle;
  for (const PortReading& port : ports) {
    if (port.state == "ACTIVE" || port.state.empty()) continue;
    idle.push_back(fmt::format("{} port {} ({}{}{}){}", port.adapter, port.port, port.state,
                               port.physical.empty() ? "" : ", ", port.physical,
                               port.state == "INIT" ? ", which no subnet manager has set up" : ""));
  }
  if (!idle.empty())
    out.warn("{} of {} InfiniBand or RoCE ports {} not active: {}{}", idle.size(), ports.size(),
             idle.size() == 1 ? "is" : "are", fmt::join(idle, ", "),
             idle.size() == ports.size() ? "; NCCL will use TCP" : "");
}

void judge_disk(const DiskReading& disk, Findings& out) {
  if (!disk.writable)
    out.error("{} ({}) cannot be written to", disk.path, disk.use);
  else if (disk.free_bytes < kDiskFull || disk.free_files < kFilesFew)
    out.error("{} ({}) is full: {} MiB and {} files left", disk.path, disk.use, disk.free_bytes / kMiB,
              disk.free_files);
  else if (disk.free_bytes < kDiskLow)
    out.warn("{} ({}) has {} MiB left", disk.path, disk.use, disk.free_bytes / kMiB);
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
  const auto nvml = Nvml::open(job.gpu_paths.library);
  if (!nvml) {
    out.driver_error = nvml.error().message;
    return;
  }
  out.software.driver = nvml->driver_version();
  out.software.driver_cuda = nvml->cuda_version();
  const std::vector<Gpu> gpus = find_gpus(job.gpu_paths);
  if (!gpus.empty()) out.mapping = mapping_text(gpus, job.visible_devices, job.workers, job.one_gpu_each);
  std::vector<int> chosen = job.gpus.value_or(std::vector<int>());
  if (!job.gpus) {
    for (const Device& device : visible_devices(gpus, job.visible_devices))
      chosen.push_back(gpus[device.gpu].index);
  }
  for (const int index : chosen) out.gpus.push_back(nvml->read(index));
  for (Nvml::GpuHealth& gpu : out.gpus)
    for (Nvml::Process& holder : gpu.holders)
      holder.program = first_line(fmt::format("/proc/{}/comm", holder.pid));
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

// What a check process writes: one line per event, its first character tells which. muster-preflight does the
// same (worker_runtime/preflight/main.cc). To hang or to die after kDone makes no node unhealthy.
constexpr char kStep = '>', kError = '!', kWarning = '?', kNote = '#', kSpeeds = '=', kDone = '.';

/// Reads until the process closes its end, `timeout` at most. A process that does not end in time is left to
/// HelperProcess, whose destructor sends SIGKILL and does not wait for one that hangs in the kernel.
DeviceReport read_check(const HelperProcess& process, std::chrono::milliseconds timeout) {
  const Instant deadline = SteadyClock::now() + timeout;
  Findings findings;
  std::string step = "the node", speeds;
  bool done = false;
  const auto on_line = [&](std::string_view line) {
    const std::string text = one_line(line.substr(std::min<std::size_t>(1, line.size()), kMostErrorBytes));
    const char kind = line.empty() ? '\0' : line.front();
    if (kind == kStep)
      step = text;
    else if (kind == kError || kind == kWarning || kind == kNote)
      findings.all.push_back({kind == kError, text, kind == kNote});
    else if (kind == kSpeeds)
      speeds = text;
    else if (kind == kDone) {
      done = true;
      step.clear();
    } else
      findings.error("unexpected output of the check: {}", one_line(line.substr(0, 80)));
  };
  LineSplitter lines;
  while (true) {
    if (!wait_until_ready(process.channel(), POLLIN, deadline)) {
      findings.all.push_back(
          {!done, fmt::format("the check of {} took more than {} s; a driver or a disk does not answer", step,
                              static_cast<double>(timeout.count()) / 1000)});
      break;
    }
    char block[4096];
    const ssize_t n = retry_eintr([&] { return ::read(process.channel(), block, sizeof block); });
    if (n <= 0) {
      if (!done || !step.empty()) findings.all.push_back({!done, fmt::format("the check of {} died", step)});
      break;
    }
    lines.feed({block, static_cast<std::size_t>(n)}, on_line);
  }
  return {std::move(findings.all), std::move(speeds)};
}

/// In the helper process.
void write_findings(const PreflightJob& job, int out) {
  const auto write = [&](char kind, std::string_view text) {
    (void)write_all(out, fmt::format("{}{}\n", kind, one_line(text)));
  };
  Readings readings = take_readings(job, [&](std::string_view step) { write(kStep, step); });
  for (const Finding& finding : judge(readings, job.share_gpus))
    write(finding.error ? kError : finding.note ? kNote : kWarning, finding.text);
  write(kDone, "");
  // Behind the end: programs may be on a file system that hangs, and libraries may be broken.
  GpuSoftware& software = readings.software;
  if (software.driver.empty() || software.driver_cuda == 0) return;
  write(kStep, "the versions of CUDA, NCCL and cuDNN");
  find_libraries(job.program, job.environment, software);
  for (const std::string& text : judge_software(software)) write(kWarning, text);
  write(kNote, software_text(software));
  write(kStep, "");
}

constexpr int kMostProcesses = 16;  // more would only wait for each other

/// Beside this program, where an installation and a build have it.
std::string device_program() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path() / "muster-preflight";
}

/// GPUs of the job; on a node without any its CPUs, so that the full check computes on every node.
std::vector<std::string> devices_of(const PreflightJob& job) {
  std::vector<std::string> out = gpu_devices(find_gpus(job.gpu_paths), job.visible_devices);
  if (!out.empty()) return out;
  const auto topology = read_topology(current_affinity());
  if (topology && topology->this_machine) return cpu_devices(*topology, job.workers);
  return {"CPU=cpus:"};  // where nothing can be bound, the check runs on any CPU
}

}  // namespace

std::vector<Finding> judge(const Readings& readings, bool share_gpus) {
  Findings out;
  if (!readings.driver_error.empty()) out.error("{}", readings.driver_error);
  unsigned most_links = 0;
  for (const Nvml::GpuHealth& gpu : readings.gpus) most_links = std::max(most_links, gpu.links.active);
  for (const Nvml::GpuHealth& gpu : readings.gpus) {
    if (gpu.lost) {
      out.error("{} cannot be opened: it has fallen off the bus or failed; see dmesg for its Xid",
                gpu_name(gpu));
      continue;
    }
    judge_gpu(gpu, share_gpus, out);
    judge_links(gpu, most_links, out);
  }
  judge_ports(readings.ports, out);
  for (const DiskReading& disk : readings.disks) judge_disk(disk, out);
  if (readings.descriptors < readings.descriptors_needed)
    out.error("{} open files are allowed (ulimit -Hn) and {} are needed", readings.descriptors,
              readings.descriptors_needed);
  if (!readings.memory_lockable)
    out.warn(
        "an RDMA adapter is here, but locked memory is limited (ulimit -l); NCCL may fail to register its "
        "buffers");
  if (!readings.clock_synchronised)
    out.warn("the clock is not synchronised (no NTP): times in the logs of nodes will differ");
  if (!readings.mapping.empty()) out.all.push_back({false, readings.mapping, true});
  return std::move(out.all);
}

std::string errors_text(const std::vector<Finding>& findings) {
  std::vector<std::string_view> errors;
  for (const Finding& finding : findings)
    if (finding.error) errors.push_back(finding.text);
  std::string out = fmt::format("{}", fmt::join(errors, "; "));
  if (out.size() > kMostErrorBytes) out.replace(kMostErrorBytes, std::string::npos, " ...");
  return out;
}

PreflightJob plan_preflight(const Job& job, bool share_gpus, const Environment& environment) {
  PreflightJob out;
  out.gpu_paths = gpu_paths(environment);
  out.workers = job.local_world_size;
  out.share_gpus = share_gpus;
  out.one_gpu_each = job.virtual_local_rank;
  out.program = job.command.path;
  out.environment = environment;
  if (!job.placement.empty()) {
    out.gpus.emplace();
    for (const RankPlacement& rank : job.placement)
      if (rank.gpu && std::ranges::find(*out.gpus, rank.gpu->index) == out.gpus->end())
        out.gpus->push_back(rank.gpu->index);
  }
  if (!job.visible_devices.empty())
    out.visible_devices = job.visible_devices;
  else if (const auto visible = lookup(environment, env::kCudaVisible))
    out.visible_devices = *visible;
  const std::string_view tmp = lookup(environment, "TMPDIR").value_or("");
  const std::string logs = job.logs.directory ? *job.logs.directory : std::string(tmp.empty() ? "/tmp" : tmp);
  if (logs != "/dev/null") out.disks.push_back({.path = logs, .use = "logs"});
  if (::access("/dev/shm", F_OK) == 0)
    out.disks.push_back({.path = "/dev/shm", .use = "memory that processes share"});
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

Readings take_readings(const PreflightJob& job, const std::function<void(std::string_view)>& step) {
  Readings out;
  step("the GPUs (NVML)");
  read_gpus(job, out);
  step("the ports of InfiniBand");
  out.ports = read_ports(job.rdma);
  out.disks = job.disks;
  for (DiskReading& disk : out.disks) {
    step(disk.path);
    disk.path = existing(std::move(disk.path));
    read_disk(disk);
  }
  step("limits and the clock");
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  out.descriptors = limit.rlim_max;
  out.descriptors_needed = static_cast<std::uint64_t>(job.workers) * 4 + 64;
  out.memory_lockable = memory_lockable(job.rdma);
  out.clock_synchronised = clock_synchronised();
  return out;
}

DriverCheck check_driver(const GpuPaths& paths, std::chrono::milliseconds timeout) {
  DriverCheck out;
  if (!has_gpu_driver(paths)) return out;
  auto child = HelperProcess::start({.name = "job-driver"}, [&paths](int writer) {
    const auto nvml = Nvml::open(paths.library);
    if (nvml) (void)find_gpus(paths);
    (void)write_all(writer, "\n");
    if (nvml) ::pause();  // until it is killed
  });
  if (!child) {
    out.finding = Finding{true, child.error().message};
    return out;
  }
  if (wait_until_ready(child->channel(), POLLIN, after(timeout)))
    out.process = std::make_unique<HelperProcess>(*std::move(child));
  else
    out.finding =
        Finding{true, fmt::format("the GPU driver (NVML) does not answer within {} s; does nvidia-smi?",
                                  static_cast<double>(timeout.count()) / 1000)};
  return out;
}

std::vector<Finding> run_preflight(const PreflightJob& job, std::chrono::milliseconds timeout) {
  const auto child =
      HelperProcess::start({.name = "job-preflight"}, [&job](int writer) { write_findings(job, writer); });
  if (!child) return {{true, child.error().message}};
  return read_check(*child, timeout).findings;
}

std::vector<std::string> gpu_devices(std::span<const Gpu> gpus, std::optional<std::string_view> visible) {
  std::vector<std::string> out;
  for (const Device& device : visible_devices(gpus, visible)) {
    const Gpu& gpu = gpus[device.gpu];
    out.push_back(device.entry.starts_with("MIG-") ? fmt::format("GPU slice {0}=slice:{0}", device.entry)
                                                   : fmt::format("{}=gpu:{}", gpu_name(gpu), out.size()));
  }
  return out;
}

std::vector<std::string> cpu_devices(const Topology& topology, int workers) {
  std::map<int, CpuSet> sockets;
  for (const Core& core : topology.cores)
    sockets[core.socket] = sorted_union(sockets[core.socket], core.cpus);
  const int most = std::min(static_cast<int>(topology.cores.size()), kMostProcesses);
  const auto count =
      static_cast<std::size_t>(std::max(static_cast<int>(sockets.size()), std::min(workers, most)));
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [socket, cpus] = *std::next(sockets.begin(), static_cast<std::ptrdiff_t>(i % sockets.size()));
    out.push_back(fmt::format("socket {}{}=cpus:{}", socket,
                              count > sockets.size() ? fmt::format(", process {}", i / sockets.size()) : "",
                              fmt::join(cpus, ",")));
  }
  return out;
}

DeviceReport check_devices(const PreflightJob& job, const Environment& environment,
                           std::chrono::milliseconds timeout) {
  constexpr std::chrono::seconds kMargin{15};  // for muster-preflight to end what hangs, and to say so
  std::vector<std::string> words = {device_program(), fmt::format("--timeout-ms={}", timeout.count())};
  if (::access(words.front().c_str(), X_OK) != 0)
    return {
        {{true, fmt::format("the full check needs {}, which is not there; install it beside muster, or use "
                            "--preflight=quick",
                            words.front())}},
        {}};
  const std::vector<std::string> devices = devices_of(job);
  words.insert(words.end(), devices.begin(), devices.end());
  Environment variables = environment;
  variables.try_emplace(std::string(env::kCudaOrder), "PCI_BUS_ID");
  if (job.visible_devices) variables[std::string(env::kCudaVisible)] = *job.visible_devices;
  const auto child =
      HelperProcess::execute({.name = "job-devices"}, words, variables, false, [&](int out, int error) {
        (void)write_all(out, fmt::format("{}{}\n{}\n", kError, errno_error(words[0], error).message, kDone));
      });
  if (!child) return {{{true, child.error().message}}, {}};
  return read_check(*child, timeout + kMargin);
}

}  // namespace muster::launcher
