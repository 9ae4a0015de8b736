// SPDX-License-Identifier: Apache-2.0
// One job's round for the tests of membership.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <variant>

#include "rendezvous/coordinator/membership.h"
#include "tests/support/catch.h"

namespace muster::test {

using namespace muster::membership;
using namespace std::chrono_literals;

// One round with a clock that the test sets. Nodes are numbers; node n is on host "n<n>".
struct Job {
  Settings settings;
  Round round;
  Instant now{1h};

  static Request request(std::uint64_t n, int ranks = 2) {
    Request out;
    out.id = {1, n};
    out.host = "n" + std::to_string(n);
    out.wanted_ranks = ranks;
    return out;
  }
  static NodeId id(std::uint64_t n) { return {1, n}; }

  Admission join(std::uint64_t n, std::optional<std::int64_t> resume = {}) {
    return membership::join(round, settings, request(n), settings, resume, now);
  }
  Admission join(const Request& node) { return membership::join(round, settings, node, settings, {}, now); }
  Outcome decide() { return membership::decide(round, settings, now); }
  bool forms() { return std::holds_alternative<Formed>(decide()); }
  bool waits() { return std::holds_alternative<Idle>(decide()); }
  bool closes() { return std::holds_alternative<Closed>(decide()); }
  std::optional<Cause> over() {
    const Outcome outcome = decide();
    const auto* event = std::get_if<GenerationOver>(&outcome);
    return event == nullptr ? std::nullopt : std::optional(event->cause);
  }
  void disconnect(std::uint64_t n) { disconnected(round, settings, id(n), "connection reset", now); }
  bool fail(std::uint64_t n, bool may_restart = true, bool machine_at_fault = false) {
    Cause cause;
    cause.rank = 0;
    cause.exit_code = 7;
    cause.text = "rank 0 exited with code 7";
    return worker_failed(round, id(n), round.world.generation, cause, may_restart, machine_at_fault, settings,
                         now);
  }
  void all_ready(std::initializer_list<std::uint64_t> nodes) {
    for (const auto n : nodes) REQUIRE(ready(round, id(n), round.world.generation, 0, now));
  }
  void form(std::initializer_list<std::uint64_t> nodes) {
    for (const auto n : nodes) REQUIRE(join(n).kind == Admission::Kind::kAdmitted);
    REQUIRE(forms());
  }
  int place(std::uint64_t n) const { return round.nodes.at(id(n)).group_rank; }
};

inline Job job(int min_nodes, int max_nodes, int max_restarts = 3) {
  Job out;
  out.settings.min_nodes = min_nodes;
  out.settings.max_nodes = max_nodes;
  out.settings.max_restarts = max_restarts;
  return out;
}

}  // namespace muster::test
