// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/preflight.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>
#include <utility>

#include <climits>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/hardware/cpu_set.h"
#include "launcher/hardware/device_choice.h"
#include "launcher/hardware/pci_place.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/store/wire.h"

namespace muster::launcher {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kLeftover = 256 * kMiB;  // less is a context that is just being closed
constexpr std::uint64_t kDiskFull = 64 * kMiB;   // not even a failing job's last words
constexpr std::uint64_t kDiskScarce = 1024 * kMiB;
constexpr std::uint64_t kFilesFew = 1000;
constexpr std::size_t kMostErrorBytes = 1000;  // it is in every other node's log

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

// What a check process writes: one line per event, its first character tells which. muster-preflight does the
// same (worker_runtime/preflight/main.cc).
constexpr char kStep = '>', kError = '!', kWarning = '?', kSpeeds = '=', kDone = '.';

struct CheckOutput {
  std::vector<Finding> findings;
  std::string step, speeds;
  bool done = false;

  void take(std::string_view line) {
    const std::string text = wire::printable(line.substr(std::min<std::size_t>(1, line.size())), 1000);
    switch (line.empty() ? '\0' : line.front()) {
      case kStep:
        step = text;
        break;
      case kError:
      case kWarning:
        findings.push_back({line.front() == kError, text});
        break;
      case kSpeeds:
        speeds = text;
        break;
      case kDone:
        done = true;
        break;
      default:
        findings.push_back(
            {true, fmt::format("unexpected output of the check: {}", wire::printable(line, 80))});
    }
  }
};

/// Reads until the process closes its end, `timeout` at most. A process that does not end in time is left to
/// HelperProcess, whose destructor sends SIGKILL and does not wait for one that hangs in the kernel.
CheckOutput read_check(const HelperProcess& process, std::chrono::milliseconds timeout) {
  CheckOutput out;
  const Instant deadline = SteadyClock::now() + timeout;
  std::string pending;
  while (true) {
    pollfd wait{process.channel(), POLLIN, 0};
    const auto left = static_cast<int>(time_left(deadline, SteadyClock::now()).count());
    if (retry_eintr([&] { return ::poll(&wait, 1, left); }) <= 0) {
      out.findings.push_back(
          {true, fmt::format("the check of {} took more than {} s; a driver or a disk does not answer",
                             out.step.empty() ? "the node" : out.step,
                             static_cast<double>(timeout.count()) / 1000)});
      return out;
    }
    char block[4096];
    const ssize_t n = retry_eintr([&] { return ::read(process.channel(), block, sizeof block); });
    if (n <= 0) break;
    pending.append(block, static_cast<std::size_t>(n));
    for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      out.take(std::string_view(pending).substr(0, end));
      pending.erase(0, end + 1);
    }
  }
  if (!out.done)
    out.findings.push_back(
        {true, fmt::format("the check of {} died", out.step.empty() ? "the node" : out.step)});
  return out;
}

/// In the helper process.
void write_findings(const PreflightJob& job, int out) {
  const auto tell = [&](char kind, std::string_view text) {
    (void)write_all(out, fmt::format("{}{}\n", kind, text));
  };
  const Readings readings = take_readings(job, [&](std::string_view step) { tell(kStep, step); });
  for (const Finding& finding : judge(readings, job.share_gpus))
    tell(finding.error ? kError : kWarning, finding.text);
  tell(kDone, "");
}

constexpr int kMostProcesses = 16;  // more would only wait for each other

/// Beside this program, where an installation and a build have it.
std::string device_program() {
  std::string path(PATH_MAX, '\0');
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  path.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
  return path + "muster-preflight";
}

/// GPUs of the job; on a node without any its CPUs, so that the full check computes on every node.
std::vector<std::string> devices_of(const PreflightJob& job) {
  std::vector<std::string> out = gpu_devices(find_gpus(job.gpu_paths), job.visible_devices);
  if (!out.empty()) return out;
  const auto topology = read_topology(current_affinity());
  if (topology && topology->this_machine) return cpu_devices(*topology, job.workers);
  return {"CPU=cpus:"};  // where nothing can be bound, the check runs on any CPU
}

/// In the helper process, whose descriptor `out` is the pipe. Returns where the program cannot be executed.
void execute(std::vector<std::string> words, const Environment& environment, int out) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(fmt::format("{}={}", name, value));
  const auto pointers = [](std::vector<std::string>& from) {
    std::vector<char*> all;
    all.reserve(from.size() + 1);
    for (std::string& each : from) all.push_back(each.data());
    all.push_back(nullptr);
    return all;
  };
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(out, STDOUT_FILENO);
  ::execve(words.front().c_str(), pointers(words).data(), pointers(variables).data());
  (void)write_all(out, fmt::format("{}{}\n{}\n", kError, errno_error(words.front(), errno).message, kDone));
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
  return out;
}

std::string errors_text(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) {
    if (!finding.error) continue;
    out += (out.empty() ? "" : "; ") + finding.text;
  }
  if (out.size() > kMostErrorBytes) {
    out.resize(kMostErrorBytes);
    out += " ...";
  }
  return out;
}

PreflightJob plan_preflight(const Job& job, bool share_gpus, const Environment& environment) {
  PreflightJob out;
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
  if (retry_eintr([&] { return ::poll(&answer, 1, static_cast<int>(timeout.count())); }) > 0)
    out.process.emplace(*std::move(child));
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
    out.push_back(device.entry.starts_with("MIG-")
                      ? fmt::format("GPU slice {0}=slice:{0}", device.entry)
                      : fmt::format("GPU {}{}=gpu:{}", gpu.index,
                                    gpu.uuid.empty() ? "" : fmt::format(" ({})", gpu.uuid), out.size()));
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
      HelperProcess::start({.name = "job-devices"}, [&](int writer) { execute(words, variables, writer); });
  if (!child) return {{{true, child.error().message}}, {}};
  CheckOutput output = read_check(*child, timeout + kMargin);
  return {std::move(output.findings), std::move(output.speeds)};
}

}  // namespace muster::launcher
