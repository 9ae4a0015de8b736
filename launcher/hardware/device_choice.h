// SPDX-License-Identifier: Apache-2.0
// Device choice: --gpus and CUDA_VISIBLE_DEVICES against the GPUs that are there -> the devices of the job in
// the order of their CUDA indices, as the programs will count them. Pure. Three numberings meet here: logical
// (what a program calls device 0), physical (nvidia-smi's) and UUIDs. Source: CUDA programming guide on
// CUDA_VISIBLE_DEVICES.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/hardware/gpus.h"

namespace muster::launcher {

struct Device {
  std::string entry;    // as in CUDA_VISIBLE_DEVICES: "3", "GPU-...", "MIG-..."
  std::size_t gpu = 0;  // which of the physical ones
};

/// "0,3", "0-3,6", "GPU-aa,GPU-bb" as single entries. kInvalidArgument: an empty one, or a range that is
/// none.
[[nodiscard]] Result<std::vector<std::string>> split_gpu_list(std::string_view text);

/// What CUDA makes of the variable: all GPUs without it; else the entries up to the first one that names
/// none; none at all if one is named twice.
[[nodiscard]] std::vector<Device> visible_devices(std::span<const Gpu> gpus,
                                                  std::optional<std::string_view> variable);

/// How many devices that is. A UUID counts also where the GPUs' UUIDs could not be read.
[[nodiscard]] int count_visible(std::span<const Gpu> gpus, std::optional<std::string_view> variable);

/// --gpus. kInvalidArgument: an entry names no GPU, one that CUDA_VISIBLE_DEVICES does not leave to this job,
/// or the same one twice (unless `oversubscribe`, which keeps the first); the text lists what there is.
[[nodiscard]] Result<std::vector<Device>> chosen_devices(std::span<const Gpu> gpus, std::string_view option,
                                                         std::optional<std::string_view> variable,
                                                         bool oversubscribe);

/// Why `workers` have no GPU each without --gpus: "2 workers for 1 GPU in CUDA_VISIBLE_DEVICES=1". Empty:
/// they have, or the GPUs are not known well enough to say so, or are hidden on purpose by an empty variable.
[[nodiscard]] std::string device_shortage(std::span<const Gpu> gpus, std::optional<std::string_view> variable,
                                          int workers);

/// What the variable means for the local ranks, on one line, as "CUDA_VISIBLE_DEVICES=2,3: local rank 0,1
/// uses nvidia-smi's GPU 2,3 as cuda:0,1", with what CUDA ignores of it. `one_each`: --virtual-local-rank.
/// Empty: the GPUs are not known well enough. Holds for CUDA_DEVICE_ORDER=PCI_BUS_ID, the workers' default.
[[nodiscard]] std::string mapping_text(std::span<const Gpu> gpus, std::optional<std::string_view> variable,
                                       int workers, bool one_each);

/// Whether it is worth while to ask the driver: the list is too short or names one twice, or where there is
/// none, `listed` GPUs are too few.
[[nodiscard]] bool may_be_short(std::optional<std::string_view> variable, int listed, int workers);

/// The GPU that a worker uses if it takes the one of its LOCAL_RANK, as programs do. With CUDA_DEVICE_ORDER
/// unset, GPUs of one model are in the order of their addresses.
struct WorkerDevice {
  std::string text;     // "GPU 3 (GPU-5a...)"; empty: none
  std::string address;  // "0000:3b:00.0"; empty: not known
  int index = -1;       // nvidia-smi's number; -1: none
};

/// `variable`: as the workers have it. `gpus`: the physical ones in the order of their addresses.
[[nodiscard]] WorkerDevice device_of_worker(std::optional<std::string_view> variable, int local_rank,
                                            std::span<const Gpu> gpus);

}  // namespace muster::launcher
