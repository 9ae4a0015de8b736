// SPDX-License-Identifier: Apache-2.0
// DryRunPart: what one node would do, as it tells the first node under --dry-run, and its JSON; and all parts
// as the one plan that the first node prints. Pure. What came from another node is checked, capped, and
// cleaned of what a terminal would obey.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct DryRunPart {
  using Variables = std::map<std::string, std::string>;

  int base_rank = 0;
  int num_workers = 0;
  std::string host;
  std::string summary;                         // placement_summary()
  std::vector<std::vector<std::string>> rows;  // placement_row(), by local rank
  std::vector<std::string> notes;              // of the placement
  std::string command;
  std::vector<Variables> environment;  // by local rank: what muster sets, or would if it were not set

  friend bool operator==(const DryRunPart&, const DryRunPart&) = default;
};

/// This node's, with its place among the nodes.
[[nodiscard]] Result<DryRunPart> dry_run_part(const Job& job, const Environment& inherited,
                                              const Assignment& assignment);

/// At most kMaxPartBytes (job_report.h): of too many workers the last ones are left out.
[[nodiscard]] std::string to_json(const DryRunPart& part);
[[nodiscard]] Result<DryRunPart> dry_run_part_from_json(std::string_view text);

/// The whole job in the order of ranks: nodes, one table, rank 0's environment, and where the others'
/// differs.
[[nodiscard]] std::string dry_run_text(std::vector<DryRunPart> parts, int world_size);

}  // namespace muster::launcher
