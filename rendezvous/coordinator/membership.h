// SPDX-License-Identifier: Apache-2.0
// Membership: one job's rendezvous as a value: who is here, which world runs, what is waited for. Event
// functions note facts; decide() draws the consequences, one at a time: call it until it answers Idle. Pure:
// no I/O, no clock (time is an argument, the coordinator's steady clock), deterministic. In place, because a
// round of 10,000 nodes is not copied for one heartbeat; a copy is a snapshot. Owned by Jobs; one thread.
// Source: what torch/distributed/elastic/rendezvous/dynamic_rendezvous.py promises (MIN:MAX, last call, join
// timeout), decided in one place instead of by every agent, with one restart budget for the job.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/coordinator/progress_tracker.h"
#include "rendezvous/protocol/world.h"

namespace muster::membership {

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
};

/// What went wrong with a node that is not here. Kept for reasons and reports, one entry per name.
struct JoinFailure {
  std::string name;   ///< host, or address where the host is not known
  std::string phase;  ///< "authentication", "version", "settings", "connection", ...
  std::string text;
  std::optional<int> order;  ///< the place it asked for
  bool unproven = false;     ///< by somebody who did not authenticate
};
inline constexpr std::size_t kMaxJoinFailures = 64;
inline constexpr std::size_t kMaxUnprovenJoinFailures = 8;  ///< which take no other's place

enum class Phase : std::uint8_t {
  kGathering,  ///< waiting for nodes
  kRunning,    ///< Round::world runs
  kClosed,     ///< over, see Round::ending
  kLast = kClosed
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
  std::vector<JoinFailure> join_failures;
  std::optional<Cause> pending;  ///< of the end of the running generation, before decide() announced it
  bool pending_final = false;    ///< it must not be restarted
  ProgressTracker steps;         ///< of the generations that are over
  StepProgress reached;          ///< by the running or last generation, as far as its nodes have told
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
};
/// `wanted`: the rules as this node knows them. `resume`: the generation whose workers run there, or did.
/// A known id is the same process: it takes the place of its former connection, and is told of its world
/// again where it has not heard of it. Generations go on after `resume`
/// where this round knows of none, so that a coordinator that forgot does not use a number twice.
[[nodiscard]] Admission join(Round& round, const Settings& settings, const Request& request,
                             const Settings& wanted, std::optional<std::int64_t> resume, Instant now);
/// Somebody tried to join and could not, in `phase`.
void note_join_failure(Round& round, JoinFailure failure);
/// True: decide() may have been waiting for it.
bool heartbeat(Round& round, const NodeId& id, Instant now);
/// The workers of `generation` are gone on this node; it waits for the next world.
bool ready(Round& round, const NodeId& id, std::int64_t generation, std::uint16_t master_port, Instant now,
           const StepProgress& reached = {});
bool worker_failed(Round& round, const NodeId& id, std::int64_t generation, const Cause& failure,
                   bool may_restart, bool machine_at_fault, const Settings& settings, Instant now,
                   const StepProgress& reached = {});
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

struct Idle {};
/// Round::world is new: tell its members.
struct Formed {};
/// Tell the members to stop their workers; a gathering has begun.
struct GenerationOver {
  std::int64_t generation = 0;
  Cause cause;
};
/// Nodes are given up and no longer in the round: close their connections.
struct NodesLost {
  std::vector<std::pair<NodeId, std::string>> nodes;  ///< with the reason
};
/// The job is over: tell everybody. Round::ending says why.
struct Closed {};
using Outcome = std::variant<Idle, Formed, GenerationOver, NodesLost, Closed>;

[[nodiscard]] Outcome decide(Round& round, const Settings& settings, Instant now);

/// When decide() may have something to say though no event comes; max: never.
[[nodiscard]] Instant next_deadline(const Round& round);

/// Which of `candidates`, the nodes that are ready, form the next world, `max_nodes` at most, and which ranks
/// each gets; the generation is left to the caller. Ranks are contiguous per node in group-rank order; nodes
/// may differ in size and role.
/// - Without a world before: a node with an order (--node-rank, SLURM_NODEID) gets that place where it can,
///   the others fill the rest in the order in which they joined.
/// - Nodes of the last world keep their places. A place whose node is gone goes to a newcomer: the one with
///   the same order, else the same machine, else as many ranks (so that nobody's rank numbers move), else the
///   first to have joined. Further newcomers are appended; places that stay empty close up.
[[nodiscard]] World arrange(const World& last, std::vector<const Node*> candidates, int max_nodes);

/// Whether the node may be part of a world now.
[[nodiscard]] bool eligible(const Round& round, const Node& node, Instant now);
/// The machine's name for the cool-down.
[[nodiscard]] const std::string& machine_of(const Request& request);

}  // namespace muster::membership
