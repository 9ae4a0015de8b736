// SPDX-License-Identifier: Apache-2.0
// HangPart: what one node knows of a hang, as it tells the first node of the world; HangVerdict: what the
// first node tells all others when the report is written. Values and their JSON, which travels in
// control::Hang. Pure. What came from another node is checked and capped: no field of it is trusted to be
// small, and evidence is left out before ranks are where a part would be too large.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <muster/result.h>

#include "launcher/hang/hang_evidence.h"
#include "launcher/job/hang_rules.h"

namespace muster::launcher {

/// Agents and coordinator take no message over 1 MiB.
inline constexpr std::size_t kMaxHangPartBytes = std::size_t{512} << 10;

struct HangPart {
  HangReport report;                // of this node's ranks
  bool hanging = false;             // still, after the stacks were read
  OnHang action = OnHang::kReport;  // what is asked for here
  std::vector<int> moved = {};      // ranks that were silent and go on
  std::vector<int> ended = {};      // likewise, that are gone

  friend bool operator==(const HangPart&, const HangPart&) = default;
};

struct HangVerdict {
  std::string text = {};  // one line
  Odd odd = {};
  bool ends = false;      // the attempt ends for it
  bool patience = false;  // somebody asked for it: the silence is counted anew
  int rank = -1;          // that the job's report is to name
  std::string line = {};  // what it is to say of it

  friend bool operator==(const HangVerdict&, const HangVerdict&) = default;
};

/// At most kMaxHangPartBytes.
[[nodiscard]] std::string to_json(const HangPart& part);
[[nodiscard]] Result<HangPart> hang_part_from_json(std::string_view text);

[[nodiscard]] std::string to_json(const HangVerdict& verdict);
[[nodiscard]] Result<HangVerdict> hang_verdict_from_json(std::string_view text);

/// Fields without contents are left out.
[[nodiscard]] nlohmann::json to_object(const RankEvidence& rank);

/// One report of all nodes, by node rank; those of 0 to `nodes` that are not in `parts` have not answered.
[[nodiscard]] HangReport merged(const std::map<int, HangPart>& parts, int nodes);

}  // namespace muster::launcher
