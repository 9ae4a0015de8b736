// SPDX-License-Identifier: Apache-2.0
// Which ranks are on the same host: equal ids. Not the host's name, which containers share or change: the
// kernel's boot and this process' network namespace, so that two namespaces on one machine count as two
// hosts. MUSTER_HOST_ID overrides. Equal ids are a promise to try shared memory, not that it works. Pure but
// for two small files of /proc.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/env.h"

namespace muster::groups {

[[nodiscard]] std::string host_id(const Environment& environment);

/// Ranks (indices of `ids`) per host, hosts in the order of their first rank.
[[nodiscard]] std::vector<std::vector<int>> group_by_host(std::span<const std::string> ids);

}  // namespace muster::groups
