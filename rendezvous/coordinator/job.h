// SPDX-License-Identifier: Apache-2.0
// Job: one job of a coordinator: its rules, its round, whose connections are there and what they have heard;
// and JobsEffects, what its agents are to be sent. Values; owned by Jobs. One thread.
// Nothing here fails.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rendezvous/coordinator/membership.h"
#include "rendezvous/coordinator/waiting_reason.h"
#include "rendezvous/protocol/control.h"

namespace muster {

using ConnectionId = std::uint64_t;

/// One message for some connections, in order with the others.
struct Delivery {
  std::vector<ConnectionId> to;
  control::Message message;
  bool close = false;  ///< afterwards
};
struct JobsEffects {
  std::vector<Delivery> deliveries;
  std::vector<std::string> log;          ///< one line per transition
  std::vector<std::string> over;         ///< jobs whose running generation has ended
  bool formed = false;                   ///< deliveries tell of a new generation
  std::vector<ConnectionId> heartbeats;  ///< to whom an answer to one is due

  /// But for heartbeats, which wait for nothing.
  [[nodiscard]] bool empty() const { return deliveries.empty() && log.empty() && over.empty(); }
  void clear() { *this = {}; }
};

/// An agent's place in a job: the generation is that of the world it is part of and which runs.
struct NodeAssignment {
  std::string job;
  membership::NodeId node;
  std::int64_t generation = 0;
};

/// What a coordinator knows of a job.
struct Job {
  struct Program {
    std::string name;
    std::string host;  // of that node
  };
  static constexpr std::size_t kMaxRoles = 64;

  std::string name;
  membership::Settings settings;
  membership::Round round;
  std::unordered_map<membership::NodeId, ConnectionId, membership::NodeIdHash> connections;
  membership::WaitingReason told;  // the last reason pushed
  Instant told_at{};
  // Who takes part or was lost: told how the job ended if they come back later.
  std::unordered_set<membership::NodeId, membership::NodeIdHash> known;
  // Of a former process's job that was over: whose connections were there, and until when they are
  // expected.
  std::unordered_set<membership::NodeId, membership::NodeIdHash> awaited;
  Instant awaited_until{};
  std::vector<ConnectionId> newcomers;  // since then: they have heard no reason yet
  bool changed = false;                 // something happened since
  bool lost_some = false;               // agents that may come back
  bool recorded = false;                // the recorder knows of it
  // By role: what the first of its nodes runs. Of kMaxRoles roles.
  std::map<std::string, Program> programs;
  std::set<int> orders_seen;
  bool programs_differ = false;  // which was said
  Instant since{};               // it is known here
  Instant forget_at = Instant::max();
  Instant deadline = Instant::max();  // as in deadlines_
};
/// "a worker failed on n3: killed by SIGSEGV"
[[nodiscard]] std::string cause_text(const membership::Cause& cause);

/// Where the node can be reached: what it offers, with the address it is seen under in front if that is among
/// them. One that is not is none of its own, or one that --iface or --local-addr excludes; it counts where
/// the node offers nothing but loopback.
[[nodiscard]] std::vector<std::string> reachable_addresses(const std::vector<std::string>& offered,
                                                           const std::string& seen);

/// `listening`, HOST:PORT, with the best of the node's addresses where it listens on all of them.
[[nodiscard]] std::string reachable_status_address(std::string_view listening,
                                                   const std::vector<std::string>& addresses);

// What the agents of a job are sent: their places in a new world, why a node is outside it, what other nodes
// say. From a Job to deliveries.

/// All who have joined, in order.
[[nodiscard]] std::vector<ConnectionId> everybody(const Job& job);
/// Of the members with these group ranks that are connected.
[[nodiscard]] std::vector<ConnectionId> connections_of(const Job& job, std::size_t first, std::size_t end);
/// A world is new: its members get their places, the others hear why they have none.
void notify_world(const Job& job, JobsEffects& effects);
void notify_member(const Job& job, std::size_t group_rank, JobsEffects& effects);
/// Where a world runs without the node.
void notify_outsider(const Job& job, const membership::NodeId& node, JobsEffects& effects);
/// What a node says to others: a Report to the first node of the world that is there; Hang and Status from
/// the first node to all others, from another to the first; StopWorkers to the other members of the world
/// that runs. False: it is no such message.
bool forward(const Job& job, const membership::NodeId& from, const control::Message& message,
             JobsEffects& effects);
/// An empty part of the report: whoever gathers it need not wait for this node.
void notify_no_report(const Job& job, const membership::NodeId& node, JobsEffects& effects);

// What somebody who looks in (musterctl jobs) learns of a job and its nodes, as messages of control.h
// (job_query.cc). Pure; texts are cut short.

/// The host behind a connection, as it is seen from here.
using AddressOf = std::function<std::string(ConnectionId)>;

[[nodiscard]] control::JobState describe_job(const Job& job, Instant now);
/// kMaxQueryEntries nodes at most, from number `from` on; `over` gets how many there are and where to go on.
[[nodiscard]] std::vector<control::Message> describe_nodes(const Job& job, std::uint64_t from, Instant now,
                                                           const AddressOf& address_of,
                                                           control::QueryEnd& over);

}  // namespace muster
