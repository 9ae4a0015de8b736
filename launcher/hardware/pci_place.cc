// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/pci_place.h"

#include <algorithm>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <string_view>
#include <unistd.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

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
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) return out;
  while (const dirent* entry = ::readdir(directory))
    if (entry->d_name[0] != '.') out.emplace_back(entry->d_name);
  ::closedir(directory);
  std::sort(out.begin(), out.end());
  return out;
}

std::string first_line(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  char text[4096];
  const ssize_t n = retry_eintr([&] { return ::read(file.get(), text, sizeof text); });
  if (n <= 0) return {};
  const std::string_view all(text, static_cast<std::size_t>(n));
  return std::string(all.substr(0, all.find('\n')));
}

PciPlace pci_place(const std::string& link) {
  PciPlace out;
  struct Free {
    void operator()(char* text) const { std::free(text); }
  };
  const std::unique_ptr<char, Free> real(::realpath(link.c_str(), nullptr));
  if (!real) return out;
  const std::string path(real.get());
  std::string device;  // the deepest directory that is a PCI device: a virtio adapter lies below one
  std::size_t begin = 0;
  while (begin < path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = std::string_view(path).substr(begin, end - begin);
    if (is_pci_step(name)) {
      out.path.emplace_back(name);
      device = path.substr(0, end);
    }
    begin = end + 1;
  }
  const std::string node = device.empty() ? std::string() : first_line(device + "/numa_node");
  if (!node.empty()) out.numa_node = std::max(-1, std::atoi(node.c_str()));
  return out;
}

int shared_steps(const PciPlace& a, const PciPlace& b) {
  const auto ends = std::mismatch(a.path.begin(), a.path.end(), b.path.begin(), b.path.end());
  return static_cast<int>(ends.first - a.path.begin());
}

}  // namespace muster::launcher
