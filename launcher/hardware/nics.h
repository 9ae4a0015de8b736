// SPDX-License-Identifier: Apache-2.0
// Network adapters of this node and which of them is the nearest to a GPU. A device counts when its link is
// up; virtual interfaces (lo, bridges, veth) have no place in the machine and are left out. nearest_nic() is
// pure. Source: Linux's ABI descriptions of /sys/class/net and /sys/class/infiniband.
#pragma once

#include <string>
#include <vector>

#include "launcher/hardware/pci_place.h"

namespace muster::launcher {

struct Nic {
  std::string name;       // "mlx5_0" with RDMA, else the interface's: "eth0"
  std::string interface;  // of sockets; empty: an RDMA device without one
  PciPlace place;
};

/// By name. One entry per adapter: an RDMA device and its interface are the same.
[[nodiscard]] std::vector<Nic> find_nics(const std::string& sys = "/sys");

/// The one that shares the most bridges with the device, else its NUMA node, else any; of several equally
/// near ones the `turn`-th, counted round, so that neighbours use different ones. nullptr: there is none.
[[nodiscard]] const Nic* nearest_nic(const std::vector<Nic>& nics, const PciPlace& device, int turn);

}  // namespace muster::launcher
