// SPDX-License-Identifier: Apache-2.0
// Rank assignment: from what each node says about itself (its role and number of workers) to its first global
// and role rank. Ranks are contiguous per node in node order; node sizes and roles may differ. Pure, with the
// JSON of the store keys. Source: torch/distributed/elastic/agent/server/api.py (_assign_worker_ranks).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::launcher {

/// What a node's agent publishes.
struct RoleInfo {
  std::string role;
  int node_rank = 0;
  int local_world_size = 0;
  int nodes = 0;           // --nnodes, which must be the same everywhere
  int max_restarts = 0;    // likewise
  std::string host;        // for messages
  std::string connection;  // "10.0.0.4:1234": the agent's end of a connection that lives as long as the agent
  std::string program = {};  // its short name, where that has to be the same in its role; empty: it has not

  friend bool operator==(const RoleInfo&, const RoleInfo&) = default;
};

struct RankRange {
  int base_rank = 0;
  int world_size = 0;
  int role_base_rank = 0;
  int role_world_size = 0;

  friend bool operator==(const RankRange&, const RankRange&) = default;
};

/// `nodes[i]` is node i's. kMismatch names the node whose --nnodes or --max-restarts differs from node 0's,
/// or whose program from that of its role's first node.
[[nodiscard]] Result<std::vector<RankRange>> assign_ranks(std::span<const RoleInfo> nodes);

[[nodiscard]] std::string to_json(const RoleInfo& info);
[[nodiscard]] Result<RoleInfo> role_info_from_json(std::string_view text);

/// torchrun's list [base, total, role base, role total].
[[nodiscard]] std::string to_json(const RankRange& range);
[[nodiscard]] Result<RankRange> rank_range_from_json(std::string_view text);

}  // namespace muster::launcher
