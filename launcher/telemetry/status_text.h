// SPDX-License-Identifier: Apache-2.0
// What an agent answers to GET /healthz and GET /metrics, as text. Pure: status, readings and time in. Called
// by StatusPage. The names are in launcher/reference.md.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/job/job.h"
#include "launcher/progress/progress_sample.h"
#include "launcher/telemetry/agent_status.h"
#include "rendezvous/base/metrics_text.h"
#include "rendezvous/status/process_usage.h"

namespace muster::launcher {

/// Of one running worker, as it is now; what is not known is left out.
struct WorkerReading {
  std::optional<ProcessUsage> usage;
  std::optional<Position> position;      // the last it said of its progress
  std::optional<double> progress_age_s;  // since then
};

/// One JSON object with a newline.
[[nodiscard]] std::string health_text(const Job& job, const AgentStatus& status, Instant now);

/// `readings`: by local rank. `dropped_events`: nothing: there are no events.
void put_metrics(MetricsText& out, const Job& job, const AgentStatus& status,
                 std::span<const WorkerReading> readings, std::string_view version,
                 std::optional<std::uint64_t> dropped_events);

}  // namespace muster::launcher
