// SPDX-License-Identifier: Apache-2.0
// GPUs of this node, found without creating a CUDA context: NVML (nvml.h), else the driver's directory in
// /proc. A node without the driver costs three failed stat(2) calls. Numbers are those of nvidia-smi: by PCI
// address, which is CUDA's own order only with CUDA_DEVICE_ORDER=PCI_BUS_ID. Which of them a job gets is
// decided in device_choice.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/hardware/nvml.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct Gpu {
  int index = 0;                    // nvidia-smi's
  std::string uuid;                 // empty: only the number of GPUs is known
  std::string name;                 // "NVIDIA H100 80GB HBM3"; empty: unknown
  std::string pci;                  // "0000:3b:00.0"; empty: unknown
  std::vector<std::string> slices;  // UUIDs of its MIG devices
  int numa_node = -1;               // -1: the firmware does not tell
};

/// What one does at one moment, for the job's status page, /metrics and the messages between nodes.
struct GpuReading {
  Gpu gpu;
  Nvml::Figures figures;
  std::vector<std::int32_t> ranks;  // that use it, if each takes the one of its LOCAL_RANK
};

struct GpuPaths {
  std::string library;  // empty: NVML by its usual name, if there is a device file
  std::string proc_gpus = "/proc/driver/nvidia/gpus";
  std::string pci_devices = "/sys/bus/pci/devices";
};
/// With the library of MUSTER_NVML_LIBRARY.
[[nodiscard]] GpuPaths gpu_paths(const Environment& environment);

[[nodiscard]] std::vector<Gpu> find_gpus(const GpuPaths& paths);

/// Whether the driver's device file is there, for the price of a stat(2).
[[nodiscard]] bool has_gpu_driver(const GpuPaths& paths);

/// What a worker would see under this environment.
[[nodiscard]] int count_gpus(const Environment& environment);

}  // namespace muster::launcher
