// SPDX-License-Identifier: Apache-2.0
// What is told of a store's torchrun jobs to somebody who looks in (query.h): a job is what its keys name,
// see job_accounts.h. Pure; one thread. Nothing here fails.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/query.h"
#include "rendezvous/store/store_core.h"

namespace muster {

/// `only`: that job; empty: kMaxQueryEntries of them at most, by name. `total` is raised by how many there
/// are. O(jobs).
[[nodiscard]] std::vector<control::StoreJobState> store_jobs(const StoreCore& core, std::string_view only,
                                                             std::uint64_t& total);

}  // namespace muster
