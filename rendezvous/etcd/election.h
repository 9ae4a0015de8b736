// SPDX-License-Identifier: Apache-2.0
// Who runs the coordinator of a job over etcd, as values: the keys of a job, what stands in them, the role of
// this agent, how long a lease can be trusted, and what a new coordinator takes over. Pure; time is an
// argument. Called by Coordinator.
//
// Keys under <prefix>/<job id>/, the id escaped so that no job's keys are below another's:
//   coordinator   its endpoint (JSON), with the lease of its agent. Written at each election, by a
//   transaction,
//                 if nobody else has written it meanwhile; the revision of that is the number of the term
//   nodes/<id>    an agent that takes part (JSON), with the same lease as the agent's coordinator key
//   state         the job as a coordinator leaves it to the next one (job_record.h)
// Why etcd decides so little: rounds stay with a coordinator and its pure decide(), as without etcd. etcd
// says who runs it and keeps what must not be lost, and every change is a transaction that holds in the
// writer's term alone. Two agents that both believe to run the coordinator cannot both announce anything,
// whatever their clocks say; giving up at the end of the lease only spares the nodes a coordinator that could
// decide nothing. Source: the election recipe of etcd's client (concurrency/election.go), with one key
// instead of a queue.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/coordinator/job_record.h"
#include "rendezvous/coordinator/membership.h"
#include "rendezvous/etcd/messages.h"

namespace muster::etcd {

struct JobKeys {
  JobKeys(std::string_view prefix, std::string_view job_id);

  [[nodiscard]] std::string node(const membership::NodeId& id) const;
  /// The node whose key this is; nothing: it is no node's key.
  [[nodiscard]] std::optional<membership::NodeId> node_of(std::string_view key) const;

  std::string coordinator;
  std::string nodes;  ///< the prefix of all of them
  std::string nodes_end;
  std::string state;
};

/// What an agent writes: into `coordinator`, where it listens; into its node's key, with port 0.
struct Endpoint {
  std::string host;  ///< for people
  std::vector<std::string> addresses;
  std::uint16_t port = 0;
  bool has_joined = false;  ///< a node's: a coordinator of this job has accepted it
};
[[nodiscard]] std::string encode(const Endpoint& endpoint);
[[nodiscard]] std::optional<Endpoint> decode_endpoint(std::string_view text);
/// The value of the coordinator's key; kCorrupt where it is something else.
[[nodiscard]] Result<Endpoint> coordinator_endpoint(const KeyValue& coordinator);

[[nodiscard]] std::string encode_state(const JobRecord& record);
[[nodiscard]] std::optional<JobRecord> decode_state(std::string_view bytes);

/// How long the holder of a lease may rely on it: counted from the request, since etcd counts from later on.
struct LeaseClock {
  Instant asked{};
  Millis ttl{0};

  [[nodiscard]] Instant renew_at() const { return asked + ttl / 3; }
  [[nodiscard]] Instant over_at() const { return asked + ttl; }
};

enum class Role : std::uint8_t {
  kCampaign,  ///< nobody runs the coordinator; or the key is this agent's, which does not serve in that term
  kStay,      ///< this agent runs it
  kFollow,    ///< another agent runs it
};
/// `served`: the term in which this agent serves.
[[nodiscard]] Role role_of(const std::optional<KeyValue>& coordinator, LeaseId own_lease,
                           std::optional<Revision> served);

/// What the new coordinator goes on with.
struct RecoveredJob {
  std::optional<JobRecord> record;         ///< nothing: a new job
  std::vector<membership::NodeId> absent;  ///< members whose lease is over
  /// Nobody else of the job has a key but members, of whom others have none: those that are left may have
  /// been killed, too, a moment before their leases end.
  bool doubtful = false;
};
/// `state`: what stands under JobKeys::state, if anything; `nodes`: under JobKeys::nodes. A job nobody of
/// whose agents is alive was not ended by anybody: who uses its id begins a new one, whose generations go on
/// after the old one's. kCorrupt: the state is not one.
[[nodiscard]] Result<RecoveredJob> recover(const std::vector<KeyValue>& state, const JobKeys& keys,
                                           const std::vector<KeyValue>& nodes);

/// Which nodes have a key, as the coordinator sees it. A node whose lease has ended may come back with a new
/// one for `grace`: an etcd that was set up anew has forgotten all leases, and a node that lives is there
/// again at once.
class Presence {
 public:
  explicit Presence(Millis grace) : grace_(grace) {}

  /// All that stands under JobKeys::nodes.
  void set(const JobKeys& keys, const std::vector<KeyValue>& nodes, Instant now);
  void on_event(const JobKeys& keys, const WatchUpdate::Event& event, Instant now);
  /// The node is a member; if it has no key, it is absent from `until` on.
  void expect(const membership::NodeId& node, Instant until);

  /// max: nobody is expected.
  [[nodiscard]] Instant next_deadline() const;
  /// Those whose time is over; they are not expected any more.
  [[nodiscard]] std::vector<membership::NodeId> take_absent(Instant now);

 private:
  Millis grace_;
  std::set<membership::NodeId> present_;
  std::map<membership::NodeId, Instant> expected_;
};

}  // namespace muster::etcd
