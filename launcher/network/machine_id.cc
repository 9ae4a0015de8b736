// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/machine_id.h"

#include <fstream>
#include <sys/stat.h>

#include <fmt/format.h>

namespace muster::launcher {

std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!(file >> boot)) return {};
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) return boot;
  return fmt::format("{}/{}", boot, network.st_ino);
}

}  // namespace muster::launcher
