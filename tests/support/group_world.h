// SPDX-License-Identifier: Apache-2.0
// Worlds of real processes with a CPU group between them, met through a file store. For tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "worker_runtime/groups/make_cpu_group.h"

namespace muster::testing {

struct WorldOptions {
  int world_size = 2;
  Backend backend = Backend::kAuto;
  std::vector<std::string> host_ids = {};  ///< of each rank; empty: all on one host
  Millis timeout = std::chrono::seconds(40);
  int stuck_rank = -1;
  groups::SegmentMaker make_segment = groups::make_shared_segment;
};

/// Every rank makes the group and runs `body`, which returns "" if all is well. The group is destroyed before
/// the rank ends.
std::vector<RankOutcome> run_world(const WorldOptions& options,
                                   const std::function<std::string(ProcessGroup& group)>& body);

/// REQUIREs that every rank ended by itself without a complaint.
void require_all_well(const std::vector<RankOutcome>& outcomes);

}  // namespace muster::testing
