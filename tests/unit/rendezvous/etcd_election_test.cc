// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "rendezvous/etcd/election.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::etcd;
using namespace std::chrono_literals;
using membership::NodeId;
using membership::Phase;

namespace {

const JobKeys kKeys("/muster", "job");
const NodeId kA{1, 10};
const NodeId kB{2, 20};
const NodeId kC{3, 30};

KeyValue node(const NodeId& id, bool has_joined) {
  Endpoint endpoint;
  endpoint.host = "h";
  endpoint.has_joined = has_joined;
  return {kKeys.node(id), encode(endpoint), 1, 1};
}

JobRecord running_world(const std::vector<NodeId>& members) {
  JobRecord out;
  out.settings.max_restarts = 3;
  out.settings.max_nodes = 4;
  out.phase = Phase::kRunning;
  out.restarts_used = 2;
  out.world.generation = 7;
  for (const NodeId& id : members) {
    membership::Slot slot;
    slot.node = id;
    slot.ranks = 1;
    out.world.slots.push_back(slot);
  }
  return out;
}

std::vector<KeyValue> stored(const JobRecord& record) {
  return {{kKeys.state, encode_state(record), 1, 1}};
}

}  // namespace

TEST_CASE("no job's keys are below another's") {
  const JobKeys below("/muster", "job/nodes");
  REQUIRE(kKeys.coordinator == "/muster/job/coordinator");
  REQUIRE(below.coordinator == "/muster/job%2Fnodes/coordinator");
  REQUIRE_FALSE(kKeys.node_of(below.coordinator));
  REQUIRE(kKeys.node_of(kKeys.node(kA)) == kA);
  REQUIRE_FALSE(kKeys.node_of(kKeys.nodes + std::string(32, 'g')));
  REQUIRE_FALSE(kKeys.node_of(kKeys.nodes));
  // The coordinator watches its key and the nodes' in one range, without the state.
  REQUIRE(kKeys.coordinator < kKeys.nodes);
  REQUIRE(kKeys.nodes < kKeys.nodes_end);
  REQUIRE(kKeys.node({~0ULL, ~0ULL}) < kKeys.nodes_end);
  REQUIRE(kKeys.nodes_end <= kKeys.state);
}

TEST_CASE("an endpoint and a state are read as they were written, and nothing else is") {
  const Endpoint endpoint{"n3", {"10.0.0.4", "fd00::4"}, 4711, true};
  REQUIRE(decode_endpoint(encode(endpoint)) == endpoint);
  REQUIRE(coordinator_endpoint({"k", encode(endpoint), 1, 1}).value() == endpoint);
  for (const char* bad : {"", "7", "{}", R"({"addresses":[1]})", R"({"addresses":["a"],"port":70000})"})
    REQUIRE_FALSE(decode_endpoint(bad));
  REQUIRE(coordinator_endpoint({"k", R"({"addresses":["a"]})", 1, 1}).error().code == ErrorCode::kCorrupt);
  REQUIRE_FALSE(decode_endpoint(encode(Endpoint{std::string("\xff\xfe"), {}, 1, false}))->host.empty());
  const JobRecord record = running_world({kA, kB});
  REQUIRE(decode_state(encode_state(record)) == record);
  REQUIRE_FALSE(decode_state("muster job 1\n"));
  REQUIRE_FALSE(decode_state("something else"));
}

TEST_CASE("an agent campaigns, serves, stays or follows by what stands in etcd") {
  const KeyValue mine{"k", "v", 5, 77};
  REQUIRE(role_of({}, 77, {}) == Role::kCampaign);
  REQUIRE(role_of({}, 77, 5) == Role::kCampaign);
  REQUIRE(role_of(mine, 77, 5) == Role::kStay);
  REQUIRE(role_of(mine, 77, {}) == Role::kCampaign);
  REQUIRE(role_of(mine, 77, 4) == Role::kCampaign);
  REQUIRE(role_of(mine, 78, 5) == Role::kFollow);
  REQUIRE(role_of(mine, 0, {}) == Role::kFollow);
}

TEST_CASE("a lease is over by its holder's clock before etcd can have ended it") {
  const Instant asked{};
  LeaseClock lease{asked, 9s};
  REQUIRE(lease.renew_at() == asked + 3s);
  REQUIRE(lease.over_at() == asked + 9s);
  lease = {asked + 3s, 9s};
  REQUIRE(lease.over_at() == asked + 12s);
}

TEST_CASE("a new coordinator goes on with the job, and knows who is gone") {
  const auto record = running_world({kA, kB});
  const RecoveredJob out = recover(stored(record), kKeys, {node(kB, true), node(kC, false)}).value();
  REQUIRE(out.record == record);
  REQUIRE(out.absent == std::vector{kA});
  REQUIRE(out.doubtful);
  REQUIRE_FALSE(recover(stored(record), kKeys, {node(kA, true), node(kB, true)})->doubtful);
  REQUIRE_FALSE(recover(stored(record), kKeys, {node(kB, true), node(kC, true)})->doubtful);
  REQUIRE_FALSE(recover({}, kKeys, {node(kB, true)}).value().record);
  REQUIRE(recover({{kKeys.state, "x", 1, 1}}, kKeys, {}).error().code == ErrorCode::kCorrupt);
}

TEST_CASE("a spare that was there goes on with a world that is gone, and others begin a new job") {
  const auto record = running_world({kA, kB});
  const RecoveredJob spared = recover(stored(record), kKeys, {node(kC, true)}).value();
  REQUIRE(spared.record == record);
  REQUIRE(spared.absent == std::vector{kA, kB});
  const RecoveredJob fresh = recover(stored(record), kKeys, {node(kC, false)}).value();
  REQUIRE(fresh.record->phase == Phase::kClosed);
  REQUIRE(fresh.record->world.generation == 7);
  REQUIRE(fresh.absent.empty());
}

TEST_CASE("a node whose key is gone has a while to come back") {
  const Instant now{};
  Presence presence(10s);
  presence.set(kKeys, {node(kA, true), node(kB, true)}, now);
  presence.expect(kC, now + 2s);
  presence.expect(kA, now + 2s);  // it is there
  REQUIRE(presence.next_deadline() == now + 2s);
  presence.on_event(kKeys, {true, {kKeys.node(kA), "", 0, 0}}, now + 1s);
  presence.on_event(kKeys, {true, {kKeys.coordinator, "", 0, 0}}, now + 1s);
  REQUIRE(presence.take_absent(now + 2s) == std::vector{kC});
  presence.on_event(kKeys, {false, node(kA, true)}, now + 5s);
  REQUIRE(presence.next_deadline() == Instant::max());
  presence.set(kKeys, {node(kA, true)}, now + 6s);
  REQUIRE(presence.take_absent(now + 15s).empty());
  REQUIRE(presence.take_absent(now + 16s) == std::vector{kB});
  REQUIRE(presence.next_deadline() == Instant::max());
}
