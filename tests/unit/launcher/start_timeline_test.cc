// SPDX-License-Identifier: Apache-2.0
// How long a start took: a sum of phases, without a clock and without a process.
#include <vector>

#include "launcher/telemetry/telemetry.h"
#include "tests/support/catch.h"

using namespace muster::launcher;

TEST_CASE("the agent's phases add up, and those within another do not count twice") {
  const std::vector<AgentPhase> phases{{"plan", 0.003},
                                       {"rendezvous", 1.25},
                                       {"connect", 0.002, true},
                                       {"gather", 1.2, true},
                                       {"spawn", 0.011}};
  REQUIRE(
      agent_start_text("host-a", phases) ==
      "started on host-a in 1.26 s: plan 3 ms, rendezvous 1.25 s (connect 2 ms, gather 1.20 s), spawn 11 ms");
}
