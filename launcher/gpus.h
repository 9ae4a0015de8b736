// SPDX-License-Identifier: Apache-2.0
// GPUs: how many this node has for its workers, counted without creating a CUDA context: NVML, loaded at run
// time, else the driver's directory in /proc; then CUDA_VISIBLE_DEVICES. A node without the driver costs
// three failed stat(2) calls. Source: NVML API reference; the entries used are declared in the .cc.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/base/env.h"

namespace muster::launcher {

/// UUIDs of the physical GPUs in NVML's order (PCI bus); empty texts where only the number is known.
[[nodiscard]] std::vector<std::string> find_gpus(const std::string& proc_gpus = "/proc/driver/nvidia/gpus");

/// Their PCI addresses in that order, "0000:3b:00.0"; empty where the driver does not show them.
[[nodiscard]] std::vector<std::string> gpu_addresses(
    const std::string& proc_gpus = "/proc/driver/nvidia/gpus");

/// What a worker would see under this environment.
[[nodiscard]] int count_gpus(const Environment& environment);

/// CPUs this process may run on.
[[nodiscard]] int count_cpus();

}  // namespace muster::launcher
