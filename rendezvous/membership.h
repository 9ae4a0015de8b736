// SPDX-License-Identifier: Apache-2.0
// Membership: one job's rendezvous as a value: who is here, which world runs, what is waited for. Event
// functions note facts; decide() draws the consequences, one at a time: call it until it answers Idle. Pure:
// no I/O, no clock (time is an argument, the coordinator's steady clock), deterministic. In place, because a
// round of 10,000 nodes is not copied for one heartbeat; a copy is a snapshot. Owned by Jobs; one thread.
// Source: what torch/distributed/elastic/rendezvous/dynamic_rendezvous.py promises (MIN:MAX, last call, join
// timeout), decided in one place instead of by every agent, with one restart budget for the job.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/step_ledger.h"

namespace muster::membership {

/// Random, chosen by the agent when it starts. Host names are for people only.
struct NodeId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend auto operator<=>(const NodeId&, const NodeId&) = default;
};
struct NodeIdHash {
  std::size_t operator()(const NodeId& id) const { return static_cast<std::size_t>(id.high ^ id.low); }
};
/// 32 hexadecimal digits.
[[nodiscard]] std::string to_text(const NodeId& id);

/// The job's rules. The first node that joins brings them; nodes that come later must agree on those of
/// same_job().
struct Settings {
  int min_nodes = 1;
  int max_nodes = 1;
  int spares = 0;  ///< nodes expected to wait outside the world; more than these are told so and wait too
  int max_restarts =
      0;  ///< for the job: worker failures and lost nodes use it, other ends of a generation do not
  Millis join_timeout{600'000};  ///< from the beginning of a gathering to its end in a world or in failure
  Millis last_call_timeout{30'000};  ///< from reaching min_nodes, while max_nodes are not there
  Millis stop_timeout{60'000};       ///< how long a gathering waits for a survivor to stop its workers
  Millis heartbeat_timeout{15'000};  ///< a node that is silent for so long is lost
  Millis cool_down{30'000};          ///< a machine whose node was lost takes part again only after so long
  Millis reconnect_grace{0};         ///< how long a node may be disconnected before it is lost
  bool grow_at_safe_point = false;   ///< newcomers wait for safe_point() instead of interrupting the job
  Millis safe_point_patience{0};     ///< but no longer than this; 0: for as long as it takes
  bool restart_after_loss = true;    ///< the loss of a node ends the job unless it may use a restart
  int max_without_progress = 0;  ///< restarts in a row that lead no further, see step_ledger.h; 0: any number

  friend bool operator==(const Settings&, const Settings&) = default;
};
/// Nothing if the nodes' counts and the budget agree, else the difference: "wants --nnodes=2:4, the job has
/// --nnodes=64".
[[nodiscard]] std::string difference(const Settings& wanted, const Settings& job);
/// Nothing if the agents wait as long as the job does, else what counts instead of what this one was told:
/// "join_timeout=60 here, 600 in the job; the job's count, which its first node brought". No reason to
/// refuse.
[[nodiscard]] std::string remark(const Settings& wanted, const Settings& job);
/// Nothing if the settings make sense, else what does not.
[[nodiscard]] std::string defect(const Settings& settings);

/// What a node says about itself.
struct Request {
  NodeId id;
  std::string host;     ///< for people
  std::string machine;  ///< same text = same machine, for the cool-down; empty: the host's name is used
  std::string role = "default";
  int wanted_ranks = 1;                ///< workers on this node
  std::optional<int> order;            ///< --node-rank, SLURM_NODEID: where it belongs among the nodes
  std::vector<std::string> addresses;  ///< where the others may reach it, best first
  /// On which it serves the workers' store if it becomes the first node; 0: its workers use the
  /// coordinator's, as those of all nodes of the job.
  std::uint16_t master_port = 0;
  std::string unfit;  ///< why it takes part in no world; it came to say so. Empty: it is fit
  std::string program =
      {};  ///< the short name of what it runs, see disagreement_about_program(); empty: not told

  friend bool operator==(const Request&, const Request&) = default;
};
inline constexpr int kMaxRanksPerNode = 4096;
[[nodiscard]] inline bool is_fit(const Request& request) {
  return request.unfit.empty();
}

struct Node {
  Request request;
  std::uint64_t arrival = 0;  ///< join order
  bool connected = true;
  bool ready = true;      ///< waits for a world; a member of the last one says so when its workers are gone
  bool finished = false;  ///< all its workers of this generation succeeded
  int group_rank = -1;    ///< in the running or last world; -1: none
  Instant last_heard{};
  Instant disconnected_at{};  ///< meaningful while !connected, as is the next
  Instant back_by{};          ///< or it is lost
  bool untold = false;        ///< it has not shown yet that it heard of its world

  friend bool operator==(const Node&, const Node&) = default;
};

/// A node's place in a world; its index is the group rank.
struct Slot {
  NodeId node;
  std::string host;
  std::string machine;
  std::string role;
  std::optional<int> order;
  int ranks = 0;
  int base_rank = 0;
  int role_base_rank = 0;
  int role_world_size = 0;

  friend bool operator==(const Slot&, const Slot&) = default;
};
struct World {
  std::int64_t generation = -1;  ///< -1: none yet
  int world_size = 0;
  std::vector<Slot> slots;
  std::vector<std::string> master_addresses;  ///< of the first node, as it offered them; best first
  std::uint16_t master_port = 0;

  friend bool operator==(const World&, const World&) = default;
};

/// Why a generation ended.
struct Cause {
  enum class Kind : std::uint8_t {
    kWorkerFailed,
    kNodeLost,     ///< connection closed, or no heartbeat
    kNodeLeft,     ///< it said good-bye
    kNodesJoined,  ///< the world grows
    kStopped,      ///< an agent asked to stop the job
    kTimeout,      ///< too few nodes until the join timeout
    kSucceeded,    ///< all workers of all nodes
    kStale,        ///< it ended while the node that is told was away
    kStoreLost,    ///< the workers' store went with the coordinator that had it
  };
  Kind kind = Kind::kWorkerFailed;
  std::string host;     ///< of the node that caused it
  int group_rank = -1;  ///< -1: it is no member
  int rank = -1;        ///< the failed worker's; -1: none
  int exit_code = 0;
  std::string text;

  friend bool operator==(const Cause&, const Cause&) = default;
};
[[nodiscard]] std::string_view to_string(Cause::Kind kind);

/// What went wrong with a node that is not here. Kept for reasons and reports, one entry per name.
struct Trouble {
  std::string name;   ///< host, or address where the host is not known
  std::string phase;  ///< "authentication", "version", "settings", "connection", ...
  std::string text;
  std::optional<int> order;  ///< the place it asked for

  friend bool operator==(const Trouble&, const Trouble&) = default;
};
inline constexpr std::size_t kMaxTroubles = 64;

enum class Phase : std::uint8_t {
  kGathering,  ///< waiting for nodes
  kRunning,    ///< Round::world runs
  kClosed,     ///< over, see Round::ending
};

struct Round {
  Phase phase = Phase::kGathering;
  World world;                         ///< the running or the last one
  std::int64_t generation_floor = -1;  ///< an agent knows of this one: the next is beyond it
  int restarts_used = 0;
  std::unordered_map<NodeId, Node, NodeIdHash> nodes;
  std::uint64_t next_arrival = 0;
  Instant gathering_since{};
  Instant join_deadline = Instant::max();  ///< max: nobody has joined yet
  std::optional<Instant> stop_deadline;    ///< while survivors that stop their workers are waited for
  std::optional<Instant> last_call;
  std::map<std::string, Instant> excluded;  ///< machine -> until
  std::vector<Trouble> troubles;
  std::optional<Cause> pending;  ///< of the end of the running generation, before decide() announced it
  bool pending_final = false;    ///< it must not be restarted
  StepLedger steps;              ///< of the generations that are over
  Reached reached;               ///< by the running or last generation, as far as its nodes have told
  /// The last generation has not been entered in `steps`: the next world waits for what its nodes tell.
  std::optional<bool> unnoted;     ///< whether it failed
  bool safe_point = false;         ///< announced by the running generation just now
  std::optional<Instant> grow_by;  ///< newcomers wait for a safe point until then
  /// A world waits for nodes that were not heard since then; they may be dead already.
  std::optional<Instant> silent_since;
  Cause ending;  ///< while kClosed

  // Counted, so that decide() is O(1) while it waits.
  int num_ready = 0;             ///< connected and ready
  int num_stopping = 0;          ///< connected and not ready, while gathering
  int num_finished = 0;          ///< of the running world's slots
  std::map<int, NodeId> orders;  ///< of the connected nodes
  /// No heartbeat can be overdue before.
  Instant next_check = Instant::max();

  friend bool operator==(const Round&, const Round&) = default;
};

// Events. Those of a generation return false when they come too late: that generation is over (its members
// were told when it ended).

struct Admission {
  enum class Kind : std::uint8_t {
    kAdmitted,  ///< waits for a world
    kResumed,   ///< a member of the running world is back in time
    kUntold,    ///< a member of the running world is here, and has to be told of that world
    kStale,     ///< admitted, and has to be told that the generation it knows is over
    kRefused,   ///< see text
  };
  Kind kind = Kind::kAdmitted;
  std::string text;

  friend bool operator==(const Admission&, const Admission&) = default;
};
/// `wanted`: the rules as this node knows them. `resume`: the generation whose workers run there, or did.
/// A known id is the same process: it takes the place of its former connection, and is told of its world
/// again where it has not heard of it. Generations go on after `resume`
/// where this round knows of none, so that a coordinator that forgot does not use a number twice.
[[nodiscard]] Admission join(Round& round, const Settings& settings, const Request& request,
                             const Settings& wanted, std::optional<std::int64_t> resume, Instant now);
/// Somebody tried to join and could not, in `phase`.
void note_trouble(Round& round, Trouble trouble);
/// True: decide() may have been waiting for it.
bool heartbeat(Round& round, const NodeId& id, Instant now);
/// The workers of `generation` are gone on this node; it waits for the next world.
bool ready(Round& round, const NodeId& id, std::int64_t generation, std::uint16_t master_port, Instant now,
           const Reached& reached = {});
bool worker_failed(Round& round, const NodeId& id, std::int64_t generation, const Cause& failure,
                   bool may_restart, bool machine_at_fault, const Settings& settings, Instant now,
                   const Reached& reached = {});
bool finished(Round& round, const NodeId& id, std::int64_t generation, Instant now);
/// The running world may be interrupted now for nodes that wait.
bool safe_point(Round& round, std::int64_t generation);
/// A good-bye.
void left(Round& round, const NodeId& id, std::string_view reason);
/// How a connection went without a good-bye. A dead process' kernel closes it in order, or resets it where
/// something was unread; a living agent whose connection is reset is back within milliseconds.
enum class Break : std::uint8_t {
  kEnd,    ///< in order: its agent is gone
  kReset,  ///< it has kResetGrace, or less
  kOther,  ///< it has Settings::reconnect_grace
};
inline constexpr Millis kResetGrace{800};
/// The connection is gone without a good-bye.
void disconnected(Round& round, const Settings& settings, const NodeId& id, std::string_view error,
                  Instant now, Break how = Break::kOther);
/// Its agent is known to be gone, whatever its connection says.
void lost(Round& round, const Settings& settings, const NodeId& id, const std::string& text, Instant now);
/// The node's workers run and their store, which was the coordinator's, is gone: they cannot go on, and it is
/// no failure of theirs.
bool store_lost(Round& round, const NodeId& id, std::int64_t generation);
/// Whether a world can be formed without the node: the other members and those that wait are enough.
[[nodiscard]] bool can_spare(const Round& round, const Settings& settings, const NodeId& id, Instant now);
/// An agent, or the operator, ends the job.
void stop(Round& round, std::string_view host, std::string_view reason, int exit_code);

// Outcomes.

struct Idle {
  friend bool operator==(const Idle&, const Idle&) = default;
};
/// Round::world is new: tell its members.
struct Formed {
  friend bool operator==(const Formed&, const Formed&) = default;
};
/// Tell the members to stop their workers; a gathering has begun.
struct GenerationOver {
  std::int64_t generation = 0;
  Cause cause;

  friend bool operator==(const GenerationOver&, const GenerationOver&) = default;
};
/// Nodes are given up and no longer in the round: close their connections.
struct NodesLost {
  std::vector<std::pair<NodeId, std::string>> nodes;  ///< with the reason

  friend bool operator==(const NodesLost&, const NodesLost&) = default;
};
/// The job is over: tell everybody. Round::ending says why.
struct Closed {
  friend bool operator==(const Closed&, const Closed&) = default;
};
using Outcome = std::variant<Idle, Formed, GenerationOver, NodesLost, Closed>;

[[nodiscard]] Outcome decide(Round& round, const Settings& settings, Instant now);

/// When decide() may have something to say though no event comes; max: never.
[[nodiscard]] Instant next_deadline(const Round& round);

/// Whether the node may be part of a world now.
[[nodiscard]] bool eligible(const Round& round, const Node& node, Instant now);
/// The machine's name for the cool-down.
[[nodiscard]] const std::string& machine_of(const Request& request);

}  // namespace muster::membership
