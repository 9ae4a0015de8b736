// SPDX-License-Identifier: Apache-2.0
// NodeReport as JSON: the form in which an agent hands its part of the report to the first node, and in which
// a worker appears in report.json. Pure. Versioned and capped: what came from another node is checked, and
// evidence is left out before the ends themselves where a part would be too large.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <muster/result.h>

#include "launcher/report/root_cause.h"

namespace muster::launcher {

inline constexpr int kReportVersion = 1;
/// Agents and coordinator take no message over 1 MiB.
inline constexpr std::size_t kMaxPartBytes = std::size_t{512} << 10;

/// At most kMaxPartBytes.
[[nodiscard]] std::string to_json(const NodeReport& report);
[[nodiscard]] Result<NodeReport> node_report_from_json(std::string_view text);

/// Fields without contents are left out.
[[nodiscard]] nlohmann::json to_object(const WorkerOutcome& worker);

}  // namespace muster::launcher
