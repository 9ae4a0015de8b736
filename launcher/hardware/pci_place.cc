// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/pci_place.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

/// "0000:3b:00.0" or "pci0000:3a".
bool is_pci_step(std::string_view name) {
  if (name.starts_with("pci")) return name.find(':') != std::string_view::npos;
  return name.size() >= 12 && name[name.size() - 2] == '.' && name[name.size() - 5] == ':' &&
         name[name.size() - 8] == ':';
}

}  // namespace

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> out;
  std::error_code unreadable;
  for (std::filesystem::directory_iterator entry(path, unreadable), end; !unreadable && entry != end;
       entry.increment(unreadable))
    if (std::string name = entry->path().filename(); !name.starts_with('.')) out.push_back(std::move(name));
  std::sort(out.begin(), out.end());
  return out;
}

std::string first_line(const std::string& path) {
  const auto text = read_file(path, 4096);
  return text ? text->substr(0, text->find('\n')) : std::string();
}

PciPlace pci_place(const std::string& link) {
  PciPlace out;
  std::error_code unknown;
  std::filesystem::path
      device;  // the deepest directory that is a PCI device: a virtio adapter lies below one
  std::filesystem::path path;
  for (const auto& name : std::filesystem::canonical(link, unknown)) {
    path /= name;
    if (!is_pci_step(name.native())) continue;
    out.path.push_back(name);
    device = path;
  }
  const std::string node = device.empty() ? std::string() : first_line(device / "numa_node");
  if (!node.empty()) out.numa_node = std::max(-1, std::atoi(node.c_str()));
  return out;
}

int shared_steps(const PciPlace& a, const PciPlace& b) {
  const auto ends = std::mismatch(a.path.begin(), a.path.end(), b.path.begin(), b.path.end());
  return static_cast<int>(ends.first - a.path.begin());
}

}  // namespace muster::launcher
