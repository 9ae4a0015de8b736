// SPDX-License-Identifier: Apache-2.0
// The values that agents and their coordinator exchange: a node's name and request, the job's settings, a
// world with its ranks, why a generation ended, how far it came. Plain values without I/O; the coordinator's
// state made of them is coordinator/membership.h, the messages that carry them are messages in control.h.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/fieldwise.h"
#include "rendezvous/base/key_map.h"

namespace muster {

using fieldwise::operator==;

/// The furthest step that a worker told of. -1: none.
struct StepProgress {
  std::int64_t epoch = -1;
  std::int64_t step = -1;

  [[nodiscard]] bool known() const { return epoch >= 0 || step >= 0; }
  friend auto operator<=>(const StepProgress&, const StepProgress&) = default;
};
/// "epoch 2 step 140", "step 7", "no step".
[[nodiscard]] std::string to_text(const StepProgress& reached);

/// What a job ends with whose restarts gain no step; one of exit_status.h's codes, here because the
/// coordinator decides it.
inline constexpr int kNoProgressExitCode = 86;

}  // namespace muster

namespace muster::membership {

using fieldwise::operator==;

/// Random, chosen by the agent when it starts. Host names are for people only.
struct NodeId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  friend auto operator<=>(const NodeId&, const NodeId&) = default;
};
/// Seeded: agents choose their ids.
struct NodeIdHash {
  std::size_t operator()(const NodeId& id) const {
    const auto bytes = std::bit_cast<std::array<char, sizeof id>>(id);
    return seeded_hash({bytes.data(), bytes.size()});
  }
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
  Millis safe_point_timeout{0};      ///< but no longer than this; 0: for as long as it takes
  bool restart_after_loss = true;    ///< false: the loss of a member ends the job
  int max_without_progress =
      0;  ///< restarts in a row that lead no further, see progress_tracker.h; 0: any number
};
/// "4" or "2:4"
[[nodiscard]] std::string nodes_text(const Settings& settings);
/// Nothing if the nodes' counts and the budget agree, else the difference: "wants --nnodes=2:4, the job has
/// --nnodes=64".
[[nodiscard]] std::string difference(const Settings& wanted, const Settings& job);
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
  std::string unhealthy;  ///< why it takes part in no world; it came to say so. Empty: it is fit
  std::string program =
      {};  ///< the short name of what it runs, see disagreement_about_program(); empty: not told
  /// HOST:PORT at which it serves /metrics (--metrics-addr), as it listens there; the coordinator keeps it as
  /// others reach it, see reachable_status_address(). Empty: none.
  std::string status_address = {};
};
inline constexpr int kMaxRanksPerNode = 4096;
[[nodiscard]] inline bool is_healthy(const Request& request) {
  return request.unhealthy.empty();
}

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
};
struct World {
  std::int64_t generation = -1;  ///< -1: none yet
  int world_size = 0;
  std::vector<Slot> slots;
  std::vector<std::string> master_addresses;  ///< of the first node, as it offered them; best first
  std::uint16_t master_port = 0;
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
    kLast = kStoreLost
  };
  Kind kind = Kind::kWorkerFailed;
  std::string host = {};  ///< of the node that caused it
  int group_rank = -1;    ///< -1: it is no member
  int rank = -1;          ///< the failed worker's; -1: none
  int exit_code = 0;
  std::string text = {};
};
[[nodiscard]] std::string_view to_string(Cause::Kind kind);

}  // namespace muster::membership
