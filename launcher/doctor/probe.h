// SPDX-License-Identifier: Apache-2.0
// Probe: tries many addresses at once: connects, looks who answers (echo_server.h), measures round trips, and
// sends a big message, which a path with a smaller MTU than its ends believe swallows.
// Blocks; one thread. Each try has a deadline of its own, so the whole lasts no longer than tries / at_once
// of them. Nothing here fails: what went wrong is the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/doctor/findings.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

struct Target {
  std::string address;  // numeric, maybe with a scope
  std::uint16_t port = 0;
  std::string token;  // of who should answer
};

struct ProbeLimits {
  std::size_t at_once = 64;
  Millis connect{3000};  // until the token is there
  Millis talk{3000};     // for the pings
  Millis big{3000};      // for the big message
};

/// In the order of the targets. `own`: the interfaces of this host.
[[nodiscard]] std::vector<Reach> probe(const std::vector<Target>& targets, const ProbeLimits& limits,
                                       const std::vector<InterfaceAddress>& own);

}  // namespace muster::launcher
