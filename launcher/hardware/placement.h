// SPDX-License-Identifier: Apache-2.0
// Placement: (topology, devices, request) -> where each local rank goes: its device, the CPUs it is bound to,
// the memory it prefers, its share of threads. Pure; topology.h and gpus.h did the reading, spawn.h applies
// it before exec. Ranks with a GPU go where the GPU is, the others are spread over the allowed cores.
// Sources: torch/numa/binding.py of PyTorch 2.14 for the modes of
// --numa-binding; set_mempolicy(2).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <muster/result.h>

#include "launcher/hardware/cores.h"
#include "launcher/hardware/device_choice.h"
#include "launcher/hardware/topology.h"

namespace muster::launcher {

enum class Bind {
  kNone,
  kNuma,         // the CPUs of a NUMA node; ranks of one node share them
  kSocket,       // of a socket
  kCore,         // cores of its own, the node's divided among the ranks there
  kExclusive,    // likewise, divided among the node's visible GPUs, used or not
  kCoreComplex,  // the cores that share a cache, one group per rank in turn
};

/// The value of --bind or, `torchrun`, of --numa-binding; nothing: neither knows it.
[[nodiscard]] std::optional<Bind> parse_bind(std::string_view text, bool torchrun);

/// What the child does to itself before exec, as words that the kernel reads. Empty `cpus`: is not bound.
struct Binding {
  std::vector<unsigned long> cpus;
  std::vector<unsigned long> memory_nodes;  // preferred, not forced: a full node must not kill. Empty: as is
};

struct RankPlacement {
  std::string device;      // its entry of CUDA_VISIBLE_DEVICES; empty: no GPU
  int logical = -1;        // what the program calls the device; -1: no GPU
  std::optional<Gpu> gpu;  // the physical one
  int numa_node = -1;      // where it belongs; -1: nowhere in particular
  CpuSet cpus;             // that it may use: bound to, or the mask
  int cores = 0;           // these make
  int threads = 1;         // its share, for OMP_NUM_THREADS
  std::string note;        // why it is not where one would expect it
  Binding binding;
};

struct PlacementRequest {
  int ranks = 1;
  Bind bind = Bind::kNone;
  std::string bind_text;  // the option as given, for messages: "--bind=core"
  bool oversubscribe = false;
  bool one_device_each = false;  // --virtual-local-rank: each rank calls its device 0
  int cpu_quota = 0;             // CPUs' worth of time that the cgroup grants all ranks together; 0: no limit
};

/// Node placement: one entry per local rank. `devices` may be fewer than the ranks: they are then used in
/// turn with `oversubscribe`, else the ranks beyond them have no GPU. kInvalidArgument: fewer cores at a NUMA
/// node than ranks that want some of their own.
[[nodiscard]] Result<std::vector<RankPlacement>> place_ranks(const Topology& topology,
                                                             const std::vector<Gpu>& gpus,
                                                             const std::vector<Device>& devices,
                                                             const PlacementRequest& request);

}  // namespace muster::launcher
