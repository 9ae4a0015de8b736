// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/placement_plan.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "launcher/hardware/cores.h"
#include "launcher/hardware/device_choice.h"
#include "rendezvous/base/env_contract.h"

namespace muster::launcher {
namespace {

Result<void> read_bind(const Options& options, PlacementRequest& request) {
  if (!options.bind.empty() && !options.numa_binding.empty())
    return usage("--bind and --numa-binding say the same thing; give one of them");
  const bool torchrun = !options.numa_binding.empty();
  const std::string& text = torchrun ? options.numa_binding : options.bind;
  if (text.empty()) return {};
  request.bind_text = fmt::format("--{}={}", torchrun ? "numa-binding" : "bind", text);
  const auto bind = parse_bind(text, torchrun);
  if (!bind)
    return usage(
        fmt::format("{}: known are {}", request.bind_text,
                    torchrun ? "node, socket, exclusive, core-complex" : "none, numa, core, socket"));
  request.bind = *bind;
  return {};
}

/// The devices in the order of their CUDA indices, and the variable that makes them so.
Result<std::vector<Device>> choose(const Options& options, const Environment& environment,
                                   const std::vector<Gpu>& gpus, Job& job) {
  const auto inherited = lookup(environment, env::kCudaVisible);
  if (options.gpus.empty()) return visible_devices(gpus, inherited);
  MUSTER_TRY(std::vector<Device> devices,
             chosen_devices(gpus, options.gpus, inherited, options.oversubscribe));
  const auto order = lookup(environment, env::kCudaOrder);
  const bool numbers = std::any_of(devices.begin(), devices.end(), [](const Device& device) {
    return device.entry.find('-') == std::string::npos;
  });
  if (numbers && order && *order != "PCI_BUS_ID")
    return usage(
        fmt::format("--gpus={} counts by PCI address, as nvidia-smi does, but CUDA_DEVICE_ORDER={}; unset "
                    "that, or give UUIDs (nvidia-smi -L)",
                    options.gpus, *order));
  const int workers = job.local_world_size;
  if (workers > static_cast<int>(devices.size()) && !options.oversubscribe)
    return usage(
        fmt::format("--gpus={} names {} GPU{} for {} workers; two ranks on one GPU need --oversubscribe",
                    options.gpus, devices.size(), devices.size() == 1 ? "" : "s", workers));
  const auto is_slice = [](const Device& device) { return device.entry.starts_with("MIG-"); };
  if (devices.size() > 1 && !job.virtual_local_rank && std::any_of(devices.begin(), devices.end(), is_slice))
    return usage(
        fmt::format("--gpus={}: a CUDA program sees one MIG slice only; add --virtual-local-rank, so that "
                    "each worker gets its own",
                    options.gpus));
  for (const Device& device : devices)
    job.visible_devices += (job.visible_devices.empty() ? "" : ",") + device.entry;
  return devices;
}

std::string summary(const Topology& topology) {
  std::set<int> nodes;
  std::size_t cpus = 0;
  for (const Core& core : topology.cores) {
    nodes.insert(core.numa_node);
    cpus += core.cpus.size();
  }
  const auto many = [](std::size_t count, std::string_view noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
  };
  return fmt::format("{} with {} allowed, on {} of {}, {}{}", many(topology.cores.size(), "core"),
                     many(cpus, "CPU"), nodes.size(), many(topology.nodes.size(), "NUMA node"),
                     many(static_cast<std::size_t>(topology.sockets), "socket"),
                     topology.this_machine ? "" : " (described by hwloc's environment, not this machine)");
}

}  // namespace

Result<Hardware> read_hardware(const Environment& environment) {
  Hardware out;
  MUSTER_TRY(out.topology, read_topology(current_affinity()));
  out.gpus = find_gpus(gpu_paths(environment));
  out.nics = find_nics();
  if (out.topology.this_machine) out.cpu_quota = cpu_quota({});
  return out;
}

Result<int> count_chosen(const Options& options) {
  MUSTER_TRY(const auto entries, split_gpu_list(options.gpus));
  return static_cast<int>(entries.size());
}

Result<void> plan_placement(const Options& options, const Environment& environment,
                            const std::function<Result<Hardware>()>& hardware, Job& job) {
  PlacementRequest request;
  MUSTER_OK(read_bind(options, request));
  request.ranks = job.local_world_size;
  request.oversubscribe = options.oversubscribe;
  request.one_device_each = job.virtual_local_rank;
  const bool asked = !options.gpus.empty() || request.bind != Bind::kNone;
  const bool share = options.oversubscribe && job.virtual_local_rank;  // each is given its GPU, in turn
  if (!asked && !share && !options.report_bindings && !options.dry_run) return {};

  auto node = hardware();
  if (!node) {
    if (asked) return fail(std::move(node).error());
    job.hardware = node.error().message;  // to be shown is all that was asked for
    return {};
  }
  if (!node->topology.this_machine && request.bind != Bind::kNone && !options.dry_run)
    return usage(
        fmt::format("{}: HWLOC_XMLFILE or HWLOC_SYNTHETIC describes another machine, on which nothing can be "
                    "bound; unset it, or plan with --dry-run",
                    request.bind_text));
  request.cpu_quota = node->cpu_quota;
  MUSTER_TRY(const std::vector<Device> devices, choose(options, environment, node->gpus, job));
  MUSTER_TRY(job.placement, place_ranks(node->topology, node->gpus, devices, node->nics, request));
  job.hardware = summary(node->topology);
  job.placed = asked;
  return {};
}

}  // namespace muster::launcher
