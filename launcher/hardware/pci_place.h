// SPDX-License-Identifier: Apache-2.0
// PciPlace: where a device hangs in the machine, read from sysfs: the bridges from the root complex down to
// it, and its NUMA node. Two devices are the nearer, the more bridges they share: below one switch, data goes
// from a GPU to a network adapter without passing the CPU. Reads links and small files; a machine without
// them gives an empty place. Source: Documentation/ABI/testing/sysfs-bus-pci of Linux.
#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

struct PciPlace {
  std::vector<std::string> path;  // "pci0000:16", "0000:16:01.0", ..., the device itself
  int numa_node = -1;             // -1: the firmware does not tell

  [[nodiscard]] std::string address() const { return path.empty() ? std::string() : path.back(); }
  friend bool operator==(const PciPlace&, const PciPlace&) = default;
};

/// `link`: /sys/bus/pci/devices/ADDRESS, or /sys/class/net/NAME/device.
[[nodiscard]] PciPlace pci_place(const std::string& link);

/// How many steps of their ways from the root are the same; 0: different root complexes, or unknown.
[[nodiscard]] int shared_steps(const PciPlace& a, const PciPlace& b);

/// Names in a directory, sorted; empty if it cannot be read.
[[nodiscard]] std::vector<std::string> list_directory(const std::string& path);

/// The first line of a small file, without the newline; empty if it cannot be read.
[[nodiscard]] std::string first_line(const std::string& path);

}  // namespace muster::launcher
