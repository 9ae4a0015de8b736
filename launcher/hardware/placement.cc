// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/placement.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "launcher/text/usage_error.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

/// Indices into Topology::cores.
using Cores = std::vector<std::size_t>;

struct Slot {
  const Device* device = nullptr;
  int device_number = -1;  // among the devices
  int node = -1;           // NUMA node whose cores it gets
  std::string note;
  Cores cores;
};

template <class Predicate>
Cores cores_where(const Topology& topology, const Predicate& predicate) {
  Cores out;
  for (std::size_t i = 0; i < topology.cores.size(); ++i)
    if (predicate(topology.cores[i])) out.push_back(i);
  return out;
}

/// The allowed core in the middle of the rank's share, if all cores were dealt out in a row: ranks spread
/// over NUMA nodes in proportion to what the mask has left of them.
const Core& middle_core(const Topology& topology, int rank, int ranks) {
  const auto count = topology.cores.size();
  return topology
      .cores[(2 * static_cast<std::size_t>(rank) + 1) * count / (2 * static_cast<std::size_t>(ranks))];
}

/// Where a rank belongs: at its GPU, if the mask leaves a core there.
void choose_node(const Topology& topology, const std::vector<Gpu>& gpus, int rank, int ranks, Slot& slot) {
  slot.node = middle_core(topology, rank, ranks).numa_node;
  if (slot.device == nullptr) return;
  const Gpu& gpu = gpus[slot.device->gpu];
  const int wanted = gpu.numa_node;
  if (wanted < 0) {
    if (topology.numa_nodes > 1) slot.note = fmt::format("the NUMA node of GPU {} is unknown", gpu.index);
  } else if (cores_where(topology, [&](const Core& core) { return core.numa_node == wanted; }).empty()) {
    slot.note = fmt::format("GPU {} is at NUMA node {}, of which no CPU may be used here", gpu.index, wanted);
  } else {
    slot.node = wanted;
  }
}

/// The `turn`-th of `turns` shares of the cores; the first shares get what does not divide.
Cores share(const Cores& cores, std::size_t turn, std::size_t turns) {
  const std::size_t each = cores.size() / turns, more = cores.size() % turns;
  const std::size_t begin = turn * each + std::min(turn, more);
  const std::size_t end = begin + each + (turn < more ? 1 : 0);
  return {cores.begin() + static_cast<std::ptrdiff_t>(begin),
          cores.begin() + static_cast<std::ptrdiff_t>(end)};
}

CpuSet cpus_of(const Topology& topology, const Cores& cores) {
  CpuSet out;
  for (const std::size_t core : cores)
    out.insert(out.end(), topology.cores[core].cpus.begin(), topology.cores[core].cpus.end());
  std::ranges::sort(out);
  return out;
}

/// Groups of cores with one last cache, the largest first.
std::vector<Cores> cache_groups(const Topology& topology, const Cores& cores) {
  std::map<int, Cores> by_cache;
  for (const std::size_t core : cores) by_cache[topology.cores[core].cache].push_back(core);
  std::vector<Cores> out;
  out.reserve(by_cache.size());
  for (auto& [cache, group] : by_cache) out.push_back(std::move(group));
  // Of equally large ones, that with the lowest CPU first.
  const auto order = [&](const Cores& group) {
    const CpuSet cpus = cpus_of(topology, group);
    return std::pair(kMaxCpu - static_cast<int>(cpus.size()), cpus.front());
  };
  std::ranges::sort(out, {}, order);
  return out;
}

/// One of those who want something of a NUMA node: its place in the order, and how many they are.
struct Turn {
  std::size_t number = 0;
  std::size_t of = 1;
};

/// Among the ranks at the slot's node; --numa-binding counts the visible GPUs there, also those that no rank
/// of this job uses, so that two jobs on one node do not get the same cores.
Turn turn_of(const std::vector<Slot>& slots, const Slot& slot, const std::vector<Gpu>& gpus,
             const std::vector<Device>& devices, bool by_device) {
  Turn out{0, 0};
  if (by_device && slot.device != nullptr && gpus[slot.device->gpu].numa_node == slot.node) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (gpus[devices[i].gpu].numa_node != slot.node) continue;
      if (static_cast<int>(i) == slot.device_number) out.number = out.of;
      ++out.of;
    }
    return out;
  }
  for (const Slot& other : slots) {
    if (other.node != slot.node) continue;
    if (&other == &slot) out.number = out.of;
    ++out.of;
  }
  return out;
}

Result<Cores> cores_of(const Topology& topology, const std::vector<Gpu>& gpus,
                       const std::vector<Device>& devices, const PlacementRequest& request,
                       const std::vector<Slot>& slots, const Slot& slot) {
  const Cores at_node = cores_where(topology, [&](const Core& core) { return core.numa_node == slot.node; });
  switch (request.bind) {
    case Bind::kNone:
      return cores_where(topology, [](const Core&) { return true; });
    case Bind::kNuma:
      return at_node;
    case Bind::kSocket: {
      const int socket = topology.cores[at_node.front()].socket;
      return cores_where(topology, [&](const Core& core) { return core.socket == socket; });
    }
    case Bind::kCore:
    case Bind::kExclusive: {
      const Turn turn = turn_of(slots, slot, gpus, devices, request.bind == Bind::kExclusive);
      if (turn.of <= at_node.size()) return share(at_node, turn.number, turn.of);
      if (request.oversubscribe) return Cores{at_node[turn.number % at_node.size()]};
      return usage(
          "{}: NUMA node {} has {} that muster may use, for {} {}; use --bind=numa, "
          "fewer ranks, or --oversubscribe to share cores",
          request.bind_text, slot.node, counted(at_node.size(), "core"), turn.of,
          request.bind == Bind::kExclusive ? "GPUs or ranks" : "ranks");
    }
    case Bind::kCoreComplex: {
      const std::vector<Cores> groups = cache_groups(topology, at_node);
      return groups[turn_of(slots, slot, gpus, devices, true).number % groups.size()];
    }
  }
  return at_node;
}

/// Each core's time is divided among the ranks that may use it.
int threads_of(const Cores& cores, const std::vector<int>& users) {
  double out = 0;
  for (const std::size_t core : cores) out += 1.0 / users[core];
  return std::max(1, static_cast<int>(out + 1e-6));
}

/// Memory comes first from where the CPUs are. On several nodes the kernel's default, the node of the CPU
/// that asks, is right already.
void bind(const Topology& topology, const Slot& slot, RankPlacement& out) {
  out.binding.cpus = to_mask(out.cpus);
  const int node = topology.cores[slot.cores.front()].numa_node;
  const bool one_node = std::ranges::all_of(
      slot.cores, [&](std::size_t core) { return topology.cores[core].numa_node == node; });
  if (one_node && topology.memory_policy) out.binding.memory_nodes = to_mask({node});
}

}  // namespace

std::optional<Bind> parse_bind(std::string_view text, bool torchrun) {
  if (text == "socket") return Bind::kSocket;
  if (torchrun) {
    if (text == "node") return Bind::kNuma;
    if (text == "exclusive") return Bind::kExclusive;
    if (text == "core-complex") return Bind::kCoreComplex;
  } else {
    if (text == "none") return Bind::kNone;
    if (text == "numa") return Bind::kNuma;
    if (text == "core") return Bind::kCore;
  }
  return std::nullopt;
}

Result<std::vector<RankPlacement>> place_ranks(const Topology& topology, const std::vector<Gpu>& gpus,
                                               const std::vector<Device>& devices,
                                               const PlacementRequest& request) {
  std::vector<Slot> slots(static_cast<std::size_t>(request.ranks));
  for (std::size_t rank = 0; rank < slots.size(); ++rank) {
    Slot& slot = slots[rank];
    if (!devices.empty() && (rank < devices.size() || request.oversubscribe)) {
      slot.device_number = static_cast<int>(rank % devices.size());
      slot.device = &devices[rank % devices.size()];
    }
    choose_node(topology, gpus, static_cast<int>(rank), request.ranks, slot);
  }
  std::vector<int> users(topology.cores.size());
  for (Slot& slot : slots) {
    MUSTER_TRY(slot.cores, cores_of(topology, gpus, devices, request, slots, slot));
    for (const std::size_t core : slot.cores) ++users[core];
  }
  std::vector<RankPlacement> out;
  for (Slot& slot : slots) {
    RankPlacement& rank = out.emplace_back();
    if (slot.device != nullptr) {
      rank.device = slot.device->entry;
      rank.logical = request.one_device_each ? 0 : slot.device_number;
      rank.gpu = gpus[slot.device->gpu];
    }
    if (request.bind != Bind::kNone) {
      rank.numa_node = slot.node;
    } else if (slot.device != nullptr) {
      rank.numa_node = topology.numa_nodes == 1 ? slot.node : rank.gpu->numa_node;
    }
    rank.cpus = cpus_of(topology, slot.cores);
    rank.cores = static_cast<int>(slot.cores.size());
    rank.threads = threads_of(slot.cores, users);
    if (request.cpu_quota > 0) rank.threads = std::clamp(request.cpu_quota / request.ranks, 1, rank.threads);
    rank.note = std::move(slot.note);
    if (request.bind != Bind::kNone) bind(topology, slot, rank);
  }
  return out;
}

}  // namespace muster::launcher
