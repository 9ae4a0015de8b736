// SPDX-License-Identifier: Apache-2.0
#include "tests/support/group_world.h"

#include <muster/file_store.h>

#include "tests/support/catch.h"

namespace muster::testing {

std::vector<RankOutcome> run_world(const WorldOptions& options,
                                   const std::function<std::string(ProcessGroup& group)>& body) {
  const TemporaryDirectory directory;
  return run_ranks({.world_size = options.world_size, .stuck_rank = options.stuck_rank},
                   [&](int rank) -> std::string {
                     auto store = open_file_store(directory.file("store"));
                     if (!store) return store.error().message;
                     groups::CpuGroupOptions group_options{.backend = options.backend,
                                                           .rank = rank,
                                                           .world_size = options.world_size,
                                                           .timeout = options.timeout,
                                                           .host_id = "one host",
                                                           .route_host = "127.0.0.1",
                                                           .make_segment = options.make_segment};
                     if (!options.host_ids.empty())
                       group_options.host_id = options.host_ids[static_cast<std::size_t>(rank)];
                     auto group = groups::make_cpu_group(group_options, **store);
                     if (!group) return group.error().message;
                     return body(**group);
                   });
}

void require_all_well(const std::vector<RankOutcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    INFO("rank " << rank << ": status " << outcomes[rank].status << ", " << outcomes[rank].text);
    REQUIRE(outcomes[rank].ended);
    REQUIRE(outcomes[rank].status == 0);
    REQUIRE(outcomes[rank].text.empty());
  }
}

}  // namespace muster::testing
