// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/device_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/text/rank_ranges.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kUnknownGpu = SIZE_MAX;

/// The entries of a list, without the blanks around each.
std::vector<std::string_view> entries_of(std::string_view list) {
  std::vector<std::string_view> out = split(list, ',');
  for (std::string_view& entry : out) entry = trimmed(entry);
  return out;
}

bool is_uuid(std::string_view entry) {
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

/// The device an entry names. An abbreviated UUID counts while it fits one device only.
std::optional<Device> find_device(std::span<const Gpu> gpus, std::string_view entry) {
  std::optional<Device> found;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const Gpu& gpu = gpus[i];
    if (entry.starts_with("GPU-")) {
      if (!gpu.uuid.starts_with(entry)) continue;
      if (found) return std::nullopt;
      found = Device{std::string(entry), i};
    } else if (entry.starts_with("MIG-")) {
      if (std::ranges::find(gpu.slices, entry) != gpu.slices.end()) return Device{std::string(entry), i};
    } else if (entry == std::to_string(gpu.index)) {
      return Device{std::string(entry), i};
    }
  }
  return found;
}

/// A MIG slice is a device of its own, a GPU is the same under each of its names.
bool same_device(const Device& a, const Device& b) {
  const auto by_name = [](const Device& each) {
    return each.entry.starts_with("MIG-") || each.gpu == kUnknownGpu;
  };
  return by_name(a) || by_name(b) ? a.entry == b.entry : a.gpu == b.gpu;
}

bool contains(const std::vector<Device>& devices, const Device& device) {
  return std::ranges::any_of(devices, [&](const Device& other) { return same_device(device, other); });
}

/// Whether the entry may be the UUID of a GPU or a slice that could not be read.
bool may_be_there(std::span<const Gpu> gpus, std::string_view entry) {
  if (entry.starts_with("GPU-"))
    return std::ranges::any_of(gpus, [](const Gpu& gpu) { return gpu.uuid.empty(); });
  return entry.starts_with("MIG-") && !gpus.empty() &&
         std::ranges::all_of(gpus, [](const Gpu& gpu) { return gpu.slices.empty(); });
}

/// The entries of the variable up to the first that names no device. With `believing` also those that may be
/// there, of which the GPU is not known.
std::vector<Device> walk(std::span<const Gpu> gpus, std::optional<std::string_view> variable,
                         bool believing) {
  std::vector<Device> out;
  if (!variable) {
    for (std::size_t i = 0; i < gpus.size(); ++i) out.push_back({std::to_string(gpus[i].index), i});
    return out;
  }
  for (const std::string_view entry : entries_of(*variable)) {
    auto device = find_device(gpus, entry);
    if (!device && believing && may_be_there(gpus, entry)) device = Device{std::string(entry), kUnknownGpu};
    if (!device) return out;
    if (contains(out, *device)) return {};  // CUDA shows no device at all
    out.push_back(*std::move(device));
  }
  return out;
}

std::string inventory(std::span<const Gpu> gpus) {
  if (gpus.empty()) return "this node has no GPU that the NVIDIA driver shows";
  std::string out = "this node has ";
  for (const Gpu& gpu : gpus)
    out += fmt::format("{}{}{}{}", &gpu == gpus.data() ? "" : ", ", gpu.index, gpu.uuid.empty() ? "" : " ",
                       gpu.uuid);
  return out;
}

/// The first of the entries that is there twice; empty: none.
std::string_view named_twice(const std::vector<std::string_view>& entries, std::size_t most) {
  for (auto entry = entries.begin(); entry < entries.begin() + std::min(most, entries.size()); ++entry)
    if (std::find(entries.begin(), entry, *entry) != entry) return *entry;
  return {};
}

}  // namespace

Result<std::vector<std::string>> split_gpu_list(std::string_view text) {
  std::vector<std::string> out;
  for (const std::string_view entry : entries_of(text)) {
    if (is_uuid(entry)) {
      out.emplace_back(entry);
      continue;
    }
    const auto numbers = parse_ranges(entry);
    if (!numbers || numbers->empty())
      return usage(
          "--gpus={}: '{}' is neither a number as nvidia-smi counts, nor a range of them, nor a UUID "
          "(GPU-..., MIG-...; see nvidia-smi -L)",
          text, entry);
    for (const int number : *numbers) out.push_back(std::to_string(number));
  }
  return out;
}

std::vector<Device> visible_devices(std::span<const Gpu> gpus, std::optional<std::string_view> variable) {
  return walk(gpus, variable, false);
}

int count_visible(std::span<const Gpu> gpus, std::optional<std::string_view> variable) {
  return static_cast<int>(walk(gpus, variable, true).size());
}

Result<std::vector<Device>> chosen_devices(std::span<const Gpu> gpus, std::string_view option,
                                           std::optional<std::string_view> variable, bool oversubscribe) {
  MUSTER_TRY(const std::vector<std::string> entries, split_gpu_list(option));
  const std::vector<Device> granted = visible_devices(gpus, variable);
  std::vector<Device> out;
  for (const std::string& entry : entries) {
    auto device = find_device(gpus, entry);
    if (!device) return usage("--gpus={}: {} names no GPU; {}", option, entry, inventory(gpus));
    // Of a whole GPU that is granted its slices are too.
    const bool allowed = contains(granted, *device) || std::ranges::any_of(granted, [&](const Device& other) {
                           return other.gpu == device->gpu && !other.entry.starts_with("MIG-");
                         });
    if (!allowed)
      return usage(
          "--gpus={}: {} is not among CUDA_VISIBLE_DEVICES={}, which limits this job; --gpus counts as "
          "nvidia-smi does, not within that list",
          option, entry, variable.value_or(""));
    if (contains(out, *device)) {
      if (oversubscribe) continue;
      return usage(
          "--gpus={}: {} is the same GPU as one before it; two ranks on one GPU need --oversubscribe", option,
          entry);
    }
    out.push_back(*std::move(device));
  }
  return out;
}

std::string device_shortage(std::span<const Gpu> gpus, std::optional<std::string_view> variable,
                            int workers) {
  if (variable && variable->empty()) return {};
  const std::string place = variable ? fmt::format(" in CUDA_VISIBLE_DEVICES={}", *variable) : std::string();
  if (variable)
    if (const auto twice = named_twice(entries_of(*variable), static_cast<std::size_t>(workers));
        !twice.empty())
      return fmt::format("GPU {} is named twice{}", twice, place);
  const bool known =
      !gpus.empty() && std::ranges::none_of(gpus, [](const Gpu& gpu) { return gpu.uuid.empty(); });
  const std::size_t there = visible_devices(gpus, variable).size();
  if (!known || there >= static_cast<std::size_t>(workers)) return {};
  return fmt::format("{} for {}{}", counted(workers, "worker"), counted(there, "GPU"), place);
}

std::string mapping_text(std::span<const Gpu> gpus, std::optional<std::string_view> variable, int workers,
                         bool one_each) {
  std::vector<Device> devices = visible_devices(gpus, variable);
  const std::vector<std::string_view> entries = entries_of(variable.value_or(""));
  const bool listed = !entries[0].empty();
  const bool known = walk(gpus, variable, true).size() == devices.size();
  // With one_each CUDA never gets the whole list, and what it would ignore does not matter.
  if (!known || (one_each && listed && devices.size() < entries.size())) return {};
  std::string out = variable ? fmt::format("CUDA_VISIBLE_DEVICES={}: ", *variable)
                             : std::string("CUDA_VISIBLE_DEVICES is not set: ");
  std::string more;
  if (listed && devices.empty() && find_device(gpus, entries[0]))
    more = "; a GPU is named twice, and CUDA shows none then";
  else if (listed && devices.size() < entries.size())
    more = fmt::format("; CUDA ignores '{}', which names no GPU of this node, and what follows it",
                       entries[devices.size()]);
  if (devices.empty()) return out + "the workers see no GPU" + more;
  if (!one_each && devices.size() > 1 && devices[0].entry.starts_with("MIG-")) {
    devices.resize(1);
    more = "; CUDA shows the first MIG slice only, --virtual-local-rank gives each worker its own";
  }
  const auto all = static_cast<std::size_t>(workers), users = one_each ? all : std::min(all, devices.size());
  std::string ranks, names;
  for (std::size_t rank = 0; rank < users; ++rank) {
    const Device& device = devices[rank % devices.size()];
    const bool slice = device.entry.starts_with("MIG-");
    ranks += fmt::format("{}{}", rank == 0 ? "" : ",", rank);
    names += fmt::format("{}{}{}", rank == 0 ? "" : ",", gpus[device.gpu].index,
                         slice ? fmt::format(" ({})", device.entry) : "");
  }
  out +=
      fmt::format("local rank {} uses nvidia-smi's GPU {} as cuda:{}", ranks, names, one_each ? "0" : ranks);
  if (users < all) out += fmt::format("; local ranks from {} on have no GPU of their own", users);
  return out + more;
}

bool may_be_short(std::optional<std::string_view> variable, int listed, int workers) {
  if (!variable) return listed < workers;
  const auto entries = entries_of(*variable);
  return static_cast<int>(entries.size()) < workers ||
         !named_twice(entries, static_cast<std::size_t>(workers)).empty();
}

WorkerDevice device_of_worker(std::optional<std::string_view> variable, int local_rank,
                              std::span<const Gpu> gpus) {
  const auto devices = visible_devices(gpus, variable);
  if (local_rank < 0 || static_cast<std::size_t>(local_rank) >= devices.size()) return {};
  const Device& device = devices[static_cast<std::size_t>(local_rank)];
  const Gpu& gpu = gpus[device.gpu];
  if (device.entry.starts_with("MIG-"))
    return {fmt::format("GPU slice {}", device.entry), gpu.pci, gpu.index};
  WorkerDevice out{fmt::format("GPU {}", gpu.index), gpu.pci, gpu.index};
  if (!gpu.uuid.empty()) out.text += fmt::format(" ({})", gpu.uuid);
  return out;
}

}  // namespace muster::launcher
