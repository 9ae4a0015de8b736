// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/nics.h"

#include <algorithm>
#include <tuple>

namespace muster::launcher {
namespace {

bool rdma_up(const std::string& device) {
  const auto ports = list_directory(device + "/ports");
  return std::any_of(ports.begin(), ports.end(), [&](const std::string& port) {
    return first_line(device + "/ports/" + port + "/state").find("ACTIVE") != std::string::npos;
  });
}

/// More is nearer. A NUMA node that nobody knows is not a shared one.
std::tuple<int, bool> nearness(const Nic& nic, const PciPlace& device) {
  // The root complex alone says no more than the NUMA node does.
  const int steps = shared_steps(nic.place, device);
  const bool same_node = device.numa_node >= 0 && nic.place.numa_node == device.numa_node;
  return {steps > 1 ? steps : 0, same_node || steps > 0};
}

}  // namespace

std::vector<Nic> find_nics(const std::string& sys) {
  std::vector<Nic> out;
  const std::string infiniband = sys + "/class/infiniband/";
  for (const std::string& name : list_directory(infiniband))
    if (rdma_up(infiniband + name)) out.push_back({name, {}, pci_place(infiniband + name + "/device")});
  const std::string net = sys + "/class/net/";
  for (const std::string& name : list_directory(net)) {
    if (first_line(net + name + "/operstate") != "up") continue;
    PciPlace place = pci_place(net + name + "/device");
    if (place.path.empty()) continue;
    const auto same = std::find_if(
        out.begin(), out.end(), [&](const Nic& nic) { return nic.interface.empty() && nic.place == place; });
    if (same != out.end()) {
      same->interface = name;
    } else {
      out.push_back({name, name, std::move(place)});
    }
  }
  return out;
}

const Nic* nearest_nic(const std::vector<Nic>& nics, const PciPlace& device, int turn) {
  std::vector<const Nic*> best;
  for (const Nic& nic : nics) {
    if (!best.empty() && nearness(nic, device) < nearness(*best.front(), device)) continue;
    if (!best.empty() && nearness(*best.front(), device) < nearness(nic, device)) best.clear();
    best.push_back(&nic);
  }
  return best.empty() ? nullptr : best[static_cast<std::size_t>(turn) % best.size()];
}

}  // namespace muster::launcher
