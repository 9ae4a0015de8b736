// SPDX-License-Identifier: Apache-2.0
// GET /federate of the first agent: the /metrics of all agents of the job as one text, each sample with the
// label `node`, and muster_agent_up. The texts come over the agents' connections to the coordinator
// (StatusExchange), not by HTTP: so the agents may listen on loopback addresses, which they do by default,
// and Prometheus needs to reach the first one only. Pure. Of what a node sends a line is kept if it is a
// sample that Prometheus can read, of the family that it follows: one that is not would fail the whole
// scrape. Source: Prometheus' "Exposition formats".
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launcher {

inline constexpr std::size_t kMaxFederatedBytes = std::size_t{256} << 10;  // of one node
inline constexpr std::chrono::seconds kFederateTimeout{3};                 // Prometheus waits for 10

/// What a node sends of its /metrics: the whole lines within kMaxFederatedBytes.
[[nodiscard]] std::vector<std::string> federated_lines(std::string_view metrics);

/// `nodes`: the /metrics of each, by its rank; empty: it did not answer, or serves none.
[[nodiscard]] std::string federated_metrics(std::span<const std::string> nodes);

}  // namespace muster::launcher
