// SPDX-License-Identifier: Apache-2.0
// GpuHolders: which processes use the GPUs of this node, whose they are, and which of them an agent that is
// gone has left behind: one GpuHolder for each process on each device, by NVML's list, which in a container
// has the numbers of the host, else by who has the device files open, as `fuser -v /dev/nvidia*`. NVML may
// not come back where the driver is wedged: it is asked in processes that can be killed.
// Failure: what cannot be read is left out. Source: NVML API reference, proc(5).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hardware/nvml.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// A process on a device, as NVML lists it.
struct GpuUse {
  std::int32_t gpu = 0;  // nvidia-smi's number; from a device file, the number in its name
  std::string uuid;      // empty: not known
  std::int32_t pid = 0;
  std::uint64_t bytes = 0;  // of its memory; 0: not known
};

/// What /proc shows of a process.
struct SeenProcess {
  std::int32_t pid = 0, parent = 0;
  std::uint64_t start_ticks = 0;  // since boot
  std::uint32_t uid = 0;
  char state = '?';
  std::string name;                   // of its program, or what it calls itself
  std::string user, command;          // of holders only, as is the rest
  std::int64_t since = 0;             // when it began, seconds since the epoch
  std::string lineage, rank, run_id;  // of its environment; empty: it has none, or may not be read
};

enum class HolderKind : std::uint8_t {
  kForeign,     // of no job that muster started, as far as its environment may be read
  kWorker,      // an agent is above it, or that none is cannot be shown
  kLeftBehind,  // a worker, or started by one, whose agent is gone
  kZombie,      // it has ended, and its parent has not taken notice
  kUnseen,      // it has ended, or is in a PID namespace that is not seen from here
  kLast = kUnseen
};
/// In JSON and tables.
inline constexpr std::array<std::string_view, 5> kHolderKinds = {"foreign", "worker", "left-behind", "zombie",
                                                                 "unseen"};

struct GpuHolder {
  GpuUse use;
  SeenProcess process;  // of kUnseen: its number alone
  HolderKind kind = HolderKind::kForeign;
  bool to_free = false;  // musterctl gpus --free would end it: left behind, and the caller's own
};

/// "holds 71.2 GiB of GPU 3 (GPU-5a..)".
[[nodiscard]] std::string describe(const GpuUse& use);
/// "pid 77 (alice, rank 3 of job-a, left behind: python train.py) holds 71.2 GiB of GPU 3 (GPU-5a..)".
[[nodiscard]] std::string describe(const GpuHolder& holder);

/// All that NVML lists.
[[nodiscard]] std::vector<GpuUse> gpu_uses(const Nvml& nvml);
/// In the order of the devices.
[[nodiscard]] std::vector<GpuHolder> find_gpu_holders(const Nvml& nvml);
/// Likewise, without NVML.
[[nodiscard]] std::vector<GpuHolder> find_gpu_holders_by_files();

struct EndedHolder {
  std::int32_t pid = 0;
  bool ended = false;
  std::string text;  // what came of it: "was ended by SIGTERM"
};
/// Ends those that are `to_free` and still what was seen, by a handle each: SIGTERM, and after `timeout`
/// SIGKILL.
[[nodiscard]] std::vector<EndedHolder> end_holders(const std::vector<GpuHolder>& holders, Millis timeout);

}  // namespace muster::launcher
