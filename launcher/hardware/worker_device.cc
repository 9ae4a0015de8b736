// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/worker_device.h"

#include <fmt/format.h>

#include "launcher/hardware/device_choice.h"

namespace muster::launcher {

WorkerDevice device_of_worker(const Environment& environment, int local_rank, std::span<const Gpu> gpus) {
  const auto devices = visible_devices(gpus, lookup(environment, "CUDA_VISIBLE_DEVICES"));
  if (local_rank < 0 || static_cast<std::size_t>(local_rank) >= devices.size()) return {};
  const Device& device = devices[static_cast<std::size_t>(local_rank)];
  const Gpu& gpu = gpus[device.gpu];
  if (device.entry.starts_with("MIG-")) return {fmt::format("GPU slice {}", device.entry), gpu.pci};
  WorkerDevice out{fmt::format("GPU {}", gpu.index), gpu.pci};
  if (!gpu.uuid.empty()) out.text += fmt::format(" ({})", gpu.uuid);
  return out;
}

}  // namespace muster::launcher
