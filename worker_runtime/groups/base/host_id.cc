// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/host_id.h"

#include <map>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::groups {

std::string host_id(const Environment& environment) {
  if (const auto set = lookup(environment, "MUSTER_HOST_ID"); set && !set->empty()) return std::string(*set);
  auto boot = read_file("/proc/sys/kernel/random/boot_id", 256);
  char name[256] = {};
  (void)::gethostname(name, sizeof name - 1);
  struct stat network {};
  const bool known = ::stat("/proc/self/ns/net", &network) == 0;
  std::string id = boot ? *std::move(boot) : std::string(name);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return fmt::format("{}/{}", id, known ? network.st_ino : 0);
}

std::vector<std::vector<int>> group_by_host(std::span<const std::string> ids) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string, std::size_t> known;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto [place, is_new] = known.emplace(ids[rank], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[place->second].push_back(static_cast<int>(rank));
  }
  return hosts;
}

}  // namespace muster::groups
