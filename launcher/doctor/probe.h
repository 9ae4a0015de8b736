// SPDX-License-Identifier: Apache-2.0
// Probe: tries many addresses at once: connects, looks who answers (EchoServer), measures round trips, and
// sends a big message, which a path with a smaller MTU than its ends believe swallows.
// Blocks; one thread. Each try has a deadline of its own, so the whole lasts no longer than tries / at_once
// of them. Nothing here fails: what went wrong is the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <muster/result.h>

#include "launcher/doctor/doctor_text.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

// EchoServer: what the other nodes' probes talk to: a port on every address of this host, and a thread of its
// own that answers. It sends a token to whoever connects, and answers a ping or a big message with the same.
// Owned by doctor_node; the last copy ends the thread. Failure: open() says why there is no port; a client
// that breaks the rules, or is idle for a minute, is closed.

inline constexpr std::size_t kTokenBytes = 16;
inline constexpr char kPing = 'p';
inline constexpr char kBig = 'b';
/// Two frames of the largest kind that Ethernet has, and more.
inline constexpr std::size_t kBigBytes = 20'000;

struct EchoServer {
  /// `token`: of kTokenBytes.
  [[nodiscard]] static Result<EchoServer> open(std::string token);

  std::uint16_t port = 0;
  std::shared_ptr<void> thread;
};

struct Target {
  std::string address;  // numeric, maybe with a scope
  std::uint16_t port = 0;
  std::string token;  // of who should answer
};

struct ProbeLimits {
  std::size_t at_once = 64;
  Millis step{3000};  // until the token is there; for the pings; for the big message
};

/// In the order of the targets. `own`: the interfaces of this host.
[[nodiscard]] std::vector<Reach> probe(const std::vector<Target>& targets, const ProbeLimits& limits,
                                       const std::vector<InterfaceAddress>& own);

}  // namespace muster::launcher
