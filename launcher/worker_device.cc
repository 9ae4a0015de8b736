// SPDX-License-Identifier: Apache-2.0
#include "launcher/worker_device.h"

#include <utility>

#include <fmt/format.h>

#include "launcher/gpus.h"
#include "launcher/nproc.h"

namespace muster::launcher {

WorkerDevice device_of_worker(const Environment& environment, int local_rank,
                              std::span<const std::string> uuids, std::span<const std::string> addresses) {
  int index = local_rank;
  if (const auto visible = lookup(environment, "CUDA_VISIBLE_DEVICES")) {
    std::string_view rest = *visible;
    for (int i = 0; i < local_rank; ++i) {
      const auto comma = rest.find(',');
      if (comma == std::string_view::npos) return {};
      rest.remove_prefix(comma + 1);
    }
    const std::string_view entry = rest.substr(0, rest.find(','));
    if (entry.starts_with("MIG-") && !uuids.empty()) return {fmt::format("GPU slice {}", entry), {}};
    index = index_of_device(uuids, entry);
  }
  const auto place = static_cast<std::size_t>(index);
  if (index < 0 || place >= uuids.size()) return {};
  WorkerDevice out;
  out.text = fmt::format("GPU {}", index);
  if (!uuids[place].empty()) out.text += fmt::format(" ({})", uuids[place]);
  if (place < addresses.size()) out.address = addresses[place];
  return out;
}

std::vector<WorkerDevice> find_devices(const Environment& environment, int workers) {
  std::vector<std::string> uuids;
  std::vector<std::string> addresses;
  for (Gpu& gpu : find_gpus(gpu_paths(environment))) {
    uuids.push_back(std::move(gpu.uuid));
    addresses.push_back(std::move(gpu.pci));
  }
  std::vector<WorkerDevice> out;
  out.reserve(static_cast<std::size_t>(workers));
  for (int rank = 0; rank < workers; ++rank)
    out.push_back(device_of_worker(environment, rank, uuids, addresses));
  return out;
}

}  // namespace muster::launcher
