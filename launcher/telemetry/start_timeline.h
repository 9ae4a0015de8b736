// SPDX-License-Identifier: Apache-2.0
// StartTimeline: how long each phase of a start took on this node, from the beginning of the process to the
// last worker that was executed, and its text. Pure: Telemetry gathers the phases.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace muster::launcher {

/// In order. A phase that is part of the one before it is in brackets there.
struct AgentPhase {
  std::string_view name;  // as in the events, with _seconds behind it
  double seconds = 0;
  bool within = false;

  friend bool operator==(const AgentPhase&, const AgentPhase&) = default;
};

/// "started on host-a in 9 ms: placement 2 ms, rendezvous 4 ms (connect 1 ms, gather 3 ms), spawn 3 ms".
[[nodiscard]] std::string agent_start_text(std::string_view host, std::span<const AgentPhase> phases);

}  // namespace muster::launcher
