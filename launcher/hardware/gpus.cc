// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/gpus.h"

#include <algorithm>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/hardware/device_choice.h"
#include "launcher/hardware/small_files.h"

namespace muster::launcher {

GpuPaths gpu_paths(const Environment& environment) {
  GpuPaths out;
  out.library = lookup(environment, "MUSTER_NVML_LIBRARY").value_or("");
  return out;
}

bool has_gpu_driver(const GpuPaths& paths) {
  // Without a device node there is nothing for NVML to find, and looking for the library costs more than
  // asking here.
  return !paths.library.empty() || ::access("/dev/nvidiactl", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
}

std::vector<Gpu> find_gpus(const GpuPaths& paths) {
  std::vector<Gpu> out;
  const auto add = [&](std::string pci) -> Gpu& {
    Gpu& gpu = out.emplace_back();
    gpu.index = static_cast<int>(out.size()) - 1;
    const std::string node = first_line(fmt::format("{}/{}/numa_node", paths.pci_devices, pci));
    if (!node.empty()) gpu.numa_node = std::max(-1, std::atoi(node.c_str()));
    gpu.pci = std::move(pci);
    return gpu;
  };
  if (has_gpu_driver(paths)) {
    const auto nvml = Nvml::open(paths.library);
    if (const auto count = nvml ? nvml->count() : std::nullopt) {
      for (unsigned i = 0; i < *count; ++i) {
        const Nvml::Device device = nvml->device(i);
        if (device == nullptr) {
          add({});
          continue;
        }
        Gpu& gpu = add(nvml->pci_address(device));
        gpu.uuid = nvml->uuid(device);
        gpu.name = nvml->name(device);
        gpu.slices = nvml->slices(device);
      }
      return out;
    }
  }
  for (const std::string& pci : list_directory(paths.proc_gpus)) add(pci);
  return out;
}

int count_gpus(const Environment& environment) {
  const auto visible = lookup(environment, "CUDA_VISIBLE_DEVICES");
  if (visible && visible->empty()) return 0;
  return count_visible(find_gpus(gpu_paths(environment)), visible);
}

}  // namespace muster::launcher
