// SPDX-License-Identifier: Apache-2.0
#include "launcher/nproc.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

int index_of_device(std::span<const std::string> uuids, std::string_view entry) {
  if (entry.starts_with("GPU-")) {
    // An abbreviated UUID counts while it fits one device only. Without UUIDs the driver has to be believed.
    int found = -1;
    for (std::size_t i = 0; i < uuids.size(); ++i) {
      if (uuids[i].empty()) return static_cast<int>(i);
      if (!uuids[i].starts_with(entry)) continue;
      if (found >= 0) return -1;
      found = static_cast<int>(i);
    }
    return found;
  }
  int index = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc{} || end != entry.data() + entry.size() || index < 0) return -1;
  return index < static_cast<int>(uuids.size()) ? index : -1;
}

Result<int> resolve_nproc(std::optional<std::string_view> text, const std::function<int()>& gpu_count,
                          const std::function<int()>& cpu_count) {
  if (!text) return std::max(1, gpu_count());
  if (*text == "cpu") return cpu_count();
  if (*text == "auto") {
    const int gpus = gpu_count();
    return gpus > 0 ? gpus : cpu_count();
  }
  if (*text == "gpu") {
    const int gpus = gpu_count();
    if (gpus > 0) return gpus;
    return fail(ErrorCode::kInvalidArgument,
                "--nproc-per-node=gpu: this node has no GPU that the NVIDIA driver or CUDA_VISIBLE_DEVICES "
                "shows; use "
                "auto, cpu or a number");
  }
  int workers = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), workers);
  if (error != std::errc{} || end != text->data() + text->size() || workers < 1 || workers > 65536)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--nproc-per-node={} is neither a number from 1 to 65536 nor auto, gpu or cpu", *text));
  return workers;
}

int count_visible(std::span<const std::string> uuids, std::optional<std::string_view> visible_devices) {
  if (!visible_devices) return static_cast<int>(uuids.size());
  std::vector<int> seen;
  std::vector<std::string_view> slices;  // MIG devices: their own UUIDs, one worker each
  std::string_view rest = *visible_devices;
  while (true) {
    const auto comma = rest.find(',');
    const std::string_view entry = trimmed(rest.substr(0, comma));
    if (entry.starts_with("MIG-")) {
      if (uuids.empty() || std::find(slices.begin(), slices.end(), entry) != slices.end()) break;
      slices.push_back(entry);
    } else {
      const int device = index_of_device(uuids, entry);
      if (device < 0) break;
      // CUDA shows no device at all when one is listed twice.
      if (!entry.starts_with("GPU-") || !uuids[static_cast<std::size_t>(device)].empty())
        if (std::find(seen.begin(), seen.end(), device) != seen.end()) return 0;
      seen.push_back(device);
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return static_cast<int>(seen.size() + slices.size());
}

}  // namespace muster::launcher
