// SPDX-License-Identifier: Apache-2.0
// Who coordinates a job over etcd, as values: the keys of a job, what stands in them, whether this agent is
// to campaign, serve or follow, how long a lease can be trusted, and what a new coordinator takes over. Pure;
// time is an argument. Called by the launcher's EtcdSeat.
//
// Under <prefix>/<job id>/, the id escaped so that no job's keys are below another's:
//   coordinator   where it is (JSON), with the lease of its agent. Created by a transaction if it does not
//                 exist; its create_revision is the number of the term
//   nodes/<id>    an agent that takes part (JSON), with the same lease as the agent's coordinator key
//   state         the job as a coordinator leaves it to the next one (job_record.h)
// Why etcd decides so little: rounds stay with a coordinator and its pure decide(), as without etcd; etcd
// says who that is, keeps what must not be lost, and every change of it is a transaction that holds in the
// writer's term alone. So two agents that take themselves for the coordinator cannot both announce
// anything, whatever their clocks say; giving up at the end of the lease only spares the nodes a coordinator
// that could decide nothing.
// Source: the election recipe of etcd's client (concurrency/election.go), with one key instead of a queue.
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
#include "rendezvous/etcd/etcd_messages.h"

namespace muster::etcd {

struct JobKeys {
  JobKeys(std::string_view prefix, std::string_view job_id);

  [[nodiscard]] std::string node(const membership::NodeId& id) const;
  /// Of a node's key; nothing: it is none.
  [[nodiscard]] std::optional<membership::NodeId> node_of(std::string_view key) const;

  std::string coordinator;
  std::string nodes;  ///< the prefix of all of them
  std::string nodes_end;
  std::string state;
};

/// What an agent writes: into `coordinator`, where it listens; into its node's key, with port 0.
struct Place {
  std::string host;  ///< for people
  std::vector<std::string> addresses;
  std::uint16_t port = 0;
  bool has_joined = false;  ///< a node's: a coordinator of this job has spoken to it

  friend bool operator==(const Place&, const Place&) = default;
};
[[nodiscard]] std::string encode(const Place& place);
[[nodiscard]] std::optional<Place> decode_place(std::string_view text);
/// The coordinator's; kCorrupt where something else stands there.
[[nodiscard]] Result<Place> place_of(const KeyValue& coordinator);

[[nodiscard]] std::string encode_state(const JobRecord& record);
[[nodiscard]] std::optional<JobRecord> decode_state(std::string_view bytes);

/// A lease as its holder may believe in it: from when it was asked for, since etcd counts from later on.
class LeaseClock {
 public:
  LeaseClock() = default;
  LeaseClock(Instant asked, std::int64_t ttl_seconds) { renewed(asked, ttl_seconds); }
  void renewed(Instant asked, std::int64_t ttl_seconds);

  [[nodiscard]] Instant renew_at() const { return asked_ + ttl_ / 3; }
  [[nodiscard]] Instant over_at() const { return asked_ + ttl_; }

 private:
  Instant asked_{};
  Millis ttl_{0};
};

/// What this agent is to the job.
enum class Part : std::uint8_t {
  kCampaign,  ///< there is no coordinator
  kServe,     ///< it is this agent, which does not serve (any more)
  kStay,      ///< it is this agent
  kFollow,    ///< it is another agent
};
/// `served`: the term in which this agent serves.
[[nodiscard]] Part part_of(const std::optional<KeyValue>& coordinator, LeaseId own_lease,
                           std::optional<Revision> served);

/// What the new coordinator goes on with.
struct Inheritance {
  std::optional<JobRecord> record;         ///< nothing: a new job
  std::vector<membership::NodeId> absent;  ///< members whose lease is over
};
/// `state`: what stands under JobKeys::state, if anything; `nodes`: under JobKeys::nodes. A job nobody of
/// whose agents is alive was not ended by anybody: who uses its id begins a new one, whose generations go on
/// after the old one's. kCorrupt: the state is not one.
[[nodiscard]] Result<Inheritance> inherit(const std::vector<KeyValue>& state, const JobKeys& keys,
                                          const std::vector<KeyValue>& nodes);

/// Whose keys are there, as the coordinator sees it, and until when a node whose lease is over may come back
/// with a new one: an etcd that was set up anew has forgotten all leases, and a node that lives is there
/// again at once.
class Attendance {
 public:
  explicit Attendance(Millis grace) : grace_(grace) {}

  /// All that stands under JobKeys::nodes.
  void saw(const JobKeys& keys, const std::vector<KeyValue>& nodes, Instant now);
  void heard(const JobKeys& keys, const WatchUpdate::Event& event, Instant now);
  /// It is not there, though it should be.
  void await(const membership::NodeId& node, Instant until);

  /// max: nobody is awaited.
  [[nodiscard]] Instant next() const;
  /// Those whose time is over; they are not awaited any more.
  [[nodiscard]] std::vector<membership::NodeId> take_lost(Instant now);

 private:
  Millis grace_;
  std::set<membership::NodeId> present_;
  std::map<membership::NodeId, Instant> awaited_;
};

}  // namespace muster::etcd
