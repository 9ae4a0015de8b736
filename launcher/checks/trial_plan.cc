// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/trial_plan.h"

#include <algorithm>
#include <map>
#include <unistd.h>

#include <climits>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/hardware/cpu_set.h"
#include "launcher/hardware/device_choice.h"
#include "rendezvous/base/env_contract.h"

namespace muster::launcher {
namespace {

constexpr int kMostProcesses = 16;  // more would only wait for each other
constexpr std::string_view kProgram = "muster-preflight";

std::vector<std::string> place(std::size_t rank, std::size_t world) {
  return {fmt::format("--rank={}", rank), fmt::format("--world={}", world)};
}

/// Beside this program, where an installation and a build have it.
std::string find_program(std::string& obstacle) {
  std::string path(PATH_MAX, '\0');
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  path.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
  path += kProgram;
  if (::access(path.c_str(), X_OK) != 0)
    obstacle = fmt::format(
        "the full check needs {}, which is not there; install it beside muster, or use --preflight=quick",
        path);
  return path;
}

}  // namespace

std::vector<TrialDevice> gpu_trials(std::span<const Gpu> gpus, std::optional<std::string_view> visible,
                                    const Environment& environment) {
  const std::vector<Device> devices = visible_devices(gpus, visible);
  const bool sliced = std::any_of(devices.begin(), devices.end(),
                                  [](const Device& device) { return device.entry.starts_with("MIG-"); });
  std::vector<TrialDevice> out;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Gpu& gpu = gpus[devices[i].gpu];
    TrialDevice device;
    device.is_gpu = true;
    device.environment = environment;
    device.arguments = place(i, devices.size());
    if (!environment.contains(env::kCudaOrder))
      device.environment[std::string(env::kCudaOrder)] = "PCI_BUS_ID";
    if (visible) device.environment[std::string(env::kCudaVisible)] = *visible;
    if (sliced) {
      // A process sees one slice only, and NCCL joins none.
      device.environment[std::string(env::kCudaVisible)] = devices[i].entry;
      device.arguments.emplace_back("--alone");
      device.arguments.emplace_back("--gpu=0");
      device.name = fmt::format("GPU slice {}", devices[i].entry);
    } else {
      device.arguments.push_back(fmt::format("--gpu={}", i));
      device.name =
          fmt::format("GPU {}{}", gpu.index, gpu.uuid.empty() ? "" : fmt::format(" ({})", gpu.uuid));
    }
    out.push_back(std::move(device));
  }
  return out;
}

std::vector<TrialDevice> cpu_trials(const Topology& topology, int workers, const Environment& environment) {
  std::map<int, std::vector<int>> sockets;
  for (const Core& core : topology.cores)
    sockets[core.socket].insert(sockets[core.socket].end(), core.cpus.begin(), core.cpus.end());
  const int most = std::min(static_cast<int>(topology.cores.size()), kMostProcesses);
  const auto count =
      static_cast<std::size_t>(std::max(static_cast<int>(sockets.size()), std::min(workers, most)));
  std::vector<TrialDevice> out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = std::next(sockets.begin(), static_cast<std::ptrdiff_t>(i % sockets.size()));
    std::vector<int> cpus = at->second;
    std::sort(cpus.begin(), cpus.end());
    TrialDevice device;
    device.environment = environment;
    device.name = fmt::format("socket {}", at->first);
    if (count > sockets.size()) device.name += fmt::format(", process {}", i / sockets.size());
    device.arguments = place(i, count);
    device.arguments.push_back(fmt::format("--cpus={}", fmt::join(cpus, ",")));
    out.push_back(std::move(device));
  }
  return out;
}

TrialPlan plan_trials(const PreflightJob& job, const Environment& environment) {
  TrialPlan out;
  out.program = find_program(out.obstacle);
  if (!out.obstacle.empty()) return out;
  out.devices = gpu_trials(find_gpus(job.gpu_paths), job.visible_devices, environment);
  if (!out.devices.empty()) return out;
  const auto topology = read_topology(current_affinity());
  if (topology && topology->this_machine)
    out.devices = cpu_trials(*topology, job.workers, environment);
  else  // where nothing can be bound, the check runs where it will
    out.devices = {{"CPU", false, place(0, 1), environment}};
  return out;
}

TrialReport try_devices(const PreflightJob& job, const Environment& environment,
                        std::chrono::milliseconds patience) {
  const TrialPlan plan = plan_trials(job, environment);
  if (!plan.obstacle.empty()) return {{{true, plan.obstacle}}, {}};
  const std::vector<DeviceTrial> trials = run_trials(plan, patience);
  return {judge_trials(trials, patience), figures_text(trials)};
}

}  // namespace muster::launcher
