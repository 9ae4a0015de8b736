// SPDX-License-Identifier: Apache-2.0
// WorkerDevice: the GPU that a worker uses if it takes the one of its LOCAL_RANK, as programs do: its place,
// its UUID and its PCI address, by which the driver's messages name it. Pure. Source:
// CUDA programming guide on CUDA_VISIBLE_DEVICES; with CUDA_DEVICE_ORDER unset, GPUs of one model are in the
// order of their addresses.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launcher/hardware/gpus.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct WorkerDevice {
  std::string text;     // "GPU 3 (GPU-5a...)"; empty: none
  std::string address;  // "0000:3b:00.0"; empty: not known

  friend bool operator==(const WorkerDevice&, const WorkerDevice&) = default;
};

/// `environment`: as the workers have it. `gpus`: the physical ones in the order of their addresses.
[[nodiscard]] WorkerDevice device_of_worker(const Environment& environment, int local_rank,
                                            std::span<const Gpu> gpus);

}  // namespace muster::launcher
