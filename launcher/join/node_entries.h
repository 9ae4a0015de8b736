// SPDX-License-Identifier: Apache-2.0
// NodeEntries: what the agents of a job write for each other into the store on node 0, and how they read it:
// who claims a node rank, each attempt's descriptions and ranks, who has left. An entry of an attempt that
// begins with "!" says why there will be none: a text, or a FailureNotice as JSON. One loop; owned by
// StaticRendezvous, whose link it uses. Key names of an attempt:
// torch/distributed/elastic/agent/server/api.py.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/job/rendezvous.h"
#include "launcher/join/agent_link.h"
#include "launcher/join/rank_assignment.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// What all are told of a node whose agent has gone.
[[nodiscard]] FailureNotice loss_of(const RoleInfo& node);

class NodeEntries {
 public:
  NodeEntries(const Job& job, AgentLink& link) : job_(job), link_(link) {}

  [[nodiscard]] std::string of_attempt(int attempt) const;
  [[nodiscard]] std::string role_info(int attempt, int node) const;
  [[nodiscard]] std::string ranks(int attempt, int node) const;

  /// What this node runs, where all nodes of its role have to run the same: without a run id of its own a job
  /// may have met another. Empty: with one, the user knows.
  [[nodiscard]] std::string program() const;

  /// Two agents with the same node rank would overwrite each other's entries. Returns `waiting`'s name, which
  /// stands for this agent.
  Awaitable<Result<std::string>> claim_node_rank(AgentLink& waiting, Instant deadline);
  Awaitable<std::vector<int>> missing_nodes(int attempt);
  /// "1,3 (1 was here and is gone)", as far as forget() knows.
  [[nodiscard]] std::string describe(const std::vector<int>& missing) const;
  /// What node 0 has written for this node: its place, or why it has none.
  Awaitable<Result<Rendezvous::Membership>> read_place(int attempt, std::string master_addr);
  /// In the name of every node that has not come: this one will not take part, so nobody need be waited for.
  Awaitable<Result<void>> call_off(FailureNotice notice);
  /// This node will not take part in a later attempt. Node 0 refuses everybody; another node says it where
  /// node 0 looks for its description.
  Awaitable<Result<void>> decline(int attempt, FailureNotice notice);
  Awaitable<Result<void>> mark_left(std::string connection);
  Awaitable<Result<void>> send_report(int attempt, std::string part);

  // Node 0's.
  /// On a link to the workers' store of a later attempt, which such a node takes for the agents'.
  Awaitable<Result<void>> turn_away_late_nodes(AgentLink& link);
  /// To the last node first: node 0 goes on when all have theirs. Or why there are none.
  Awaitable<Result<void>> publish_ranks(int attempt, std::uint16_t port,
                                        const Result<std::vector<RankRange>>& assigned);
  /// What every node finds instead of its ranks.
  Awaitable<Result<void>> refuse(int attempt, std::string text);
  /// Nobody must wait for a node that is gone. What that node has said itself has precedence.
  Awaitable<Result<void>> give_up_on(int attempt, FailureNotice notice);
  /// Its part of the report will not come.
  Awaitable<Result<void>> give_up_report(int attempt, int node);
  /// On a link of its own, as for wait_until_left().
  Awaitable<Result<void>> gather_reports(AgentLink& link, int attempt, Instant deadline,
                                         Rendezvous::PartCame came);
  /// Removes what the agent of an ended connection has written before the first assignment. Of a connection
  /// that stands for no agent there is nothing.
  Awaitable<Result<void>> forget(std::string connection);
  /// Nodes whose ranks nobody claims, nor has claimed before.
  Awaitable<std::vector<int>> unclaimed();
  /// Until these node ranks have been claimed.
  Awaitable<Result<void>> wait_until_claimed(AgentLink& waiting, std::vector<int> nodes, Instant deadline);
  /// Until all who claimed a rank are through or gone. On a link of its own: this one is needed to note
  /// connections that end meanwhile.
  Awaitable<Result<void>> wait_until_left(AgentLink& farewell, Instant deadline);

 private:
  [[nodiscard]] std::string key(std::string_view name) const;
  [[nodiscard]] std::string claim(int node) const;
  [[nodiscard]] std::string report(int attempt, int node) const;
  [[nodiscard]] std::string left(std::string_view connection) const;
  [[nodiscard]] std::string agent(std::string_view connection) const;

  const Job& job_;
  AgentLink& link_;
  std::set<int> forgotten_;  // node ranks
};

}  // namespace muster::launcher
