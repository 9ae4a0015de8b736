// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/etcd_election.h"

#include <chrono>

#include <boost/asio/io_context.hpp>

#include "rendezvous/etcd/etcd_state_log.h"
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
  Place place;
  place.host = "h";
  place.has_joined = has_joined;
  return {kKeys.node(id), encode(place), 1, 1, 1};
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
  return {{kKeys.state, encode_state(record), 1, 1, 1}};
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
  REQUIRE(kKeys.nodes_end <= kKeys.state);
  REQUIRE(end_of_prefix("a\xff\xff") == "b");
}

TEST_CASE("a place and a state are read as they were written, and nothing else is") {
  const Place place{"n3", {"10.0.0.4", "fd00::4"}, 4711, true};
  REQUIRE(decode_place(encode(place)) == place);
  REQUIRE(place_of({"k", encode(place), 1, 1, 1}).value() == place);
  for (const char* bad : {"", "7", "{}", R"({"addresses":[1]})", R"({"addresses":["a"],"port":70000})"})
    REQUIRE_FALSE(decode_place(bad));
  REQUIRE(place_of({"k", R"({"addresses":["a"]})", 1, 1, 1}).error().code == ErrorCode::kCorrupt);
  REQUIRE_FALSE(decode_place(encode(Place{std::string("\xff\xfe"), {}, 1, false}))->host.empty());
  const JobRecord record = running_world({kA, kB});
  REQUIRE(decode_state(encode_state(record)) == record);
  REQUIRE_FALSE(decode_state("muster job 1\n"));
  REQUIRE_FALSE(decode_state("something else"));
}

TEST_CASE("an agent campaigns, serves, stays or follows by what stands in etcd") {
  const KeyValue mine{"k", "v", 5, 9, 77};
  REQUIRE(part_of({}, 77, {}) == Part::kCampaign);
  REQUIRE(part_of({}, 77, 5) == Part::kCampaign);
  REQUIRE(part_of(mine, 77, 5) == Part::kStay);
  REQUIRE(part_of(mine, 77, {}) == Part::kServe);
  REQUIRE(part_of(mine, 77, 4) == Part::kServe);
  REQUIRE(part_of(mine, 78, 5) == Part::kFollow);
  REQUIRE(part_of(mine, 0, {}) == Part::kFollow);
}

TEST_CASE("a lease is over by its holder's clock before etcd can have ended it") {
  const Instant asked{};
  LeaseClock lease(asked, 9);
  REQUIRE(lease.renew_at() == asked + 3s);
  REQUIRE(lease.over_at() == asked + 9s);
  lease.renewed(asked + 3s, 9);
  REQUIRE(lease.over_at() == asked + 12s);
}

TEST_CASE("a new coordinator goes on with the job, and knows who is gone") {
  const auto record = running_world({kA, kB});
  const Inheritance out = inherit(stored(record), kKeys, {node(kB, true), node(kC, false)}).value();
  REQUIRE(out.record == record);
  REQUIRE(out.absent == std::vector{kA});
  REQUIRE_FALSE(inherit({}, kKeys, {node(kB, true)}).value().record);
  REQUIRE(inherit({{kKeys.state, "x", 1, 1, 1}}, kKeys, {}).error().code == ErrorCode::kCorrupt);
}

TEST_CASE("a spare that was there goes on with a world that is gone; strangers begin a new job") {
  const auto record = running_world({kA, kB});
  const Inheritance spared = inherit(stored(record), kKeys, {node(kC, true)}).value();
  REQUIRE(spared.record == record);
  REQUIRE(spared.absent == std::vector{kA, kB});
  const Inheritance fresh = inherit(stored(record), kKeys, {node(kC, false)}).value();
  REQUIRE(fresh.record->phase == Phase::kClosed);
  REQUIRE(fresh.record->world.generation == 7);
  REQUIRE(fresh.absent.empty());
}

TEST_CASE("a node whose key is gone has a while to come back") {
  const Instant now{};
  Attendance attendance(10s);
  attendance.saw(kKeys, {node(kA, true), node(kB, true)}, now);
  attendance.await(kC, now + 2s);
  attendance.await(kA, now + 2s);  // it is there
  REQUIRE(attendance.next() == now + 2s);
  attendance.heard(kKeys, {true, {kKeys.node(kA), "", 0, 2, 0}}, now + 1s);
  attendance.heard(kKeys, {true, {kKeys.coordinator, "", 0, 2, 0}}, now + 1s);
  REQUIRE(attendance.take_lost(now + 2s) == std::vector{kC});
  attendance.heard(kKeys, {false, node(kA, true)}, now + 5s);
  REQUIRE(attendance.next() == Instant::max());
  attendance.saw(kKeys, {node(kA, true)}, now + 6s);
  REQUIRE(attendance.take_lost(now + 15s).empty());
  REQUIRE(attendance.take_lost(now + 16s) == std::vector{kB});
  REQUIRE(attendance.next() == Instant::max());
}

TEST_CASE("nothing is said before etcd has it, and what changes meanwhile goes with the next write") {
  struct Keeper final : net::StateKeeper {
    void describe(const journal::LogSink&) const override {}
    void on_committed() override { ++num_committed; }
    int num_committed = 0;
  };
  boost::asio::io_context loop{1};
  std::vector<std::optional<JobRecord>> writes;
  std::function<void()> written;
  const auto log = std::make_shared<net::EtcdStateLog>(loop, "job", running_world({kA}),
                                                       [&](const auto& state, std::function<void()> done) {
                                                         writes.push_back(state);
                                                         written = std::move(done);
                                                       });
  Keeper keeper;
  log->attach(keeper);
  REQUIRE(log->recovered().jobs.at("job") == running_world({kA}));
  REQUIRE_FALSE(log->dirty());
  log->record(JobChange(JobRecorded{"another", running_world({kB})}));
  REQUIRE_FALSE(log->dirty());
  log->record(JobChange(JobRecorded{"job", running_world({kB})}));
  REQUIRE(log->dirty());
  loop.poll();
  REQUIRE(writes.size() == 1);
  log->record(JobChange(MemberFinished{"job", kB}));
  log->record(JobChange(MemberFinished{"job", kC}));
  written();
  REQUIRE(log->dirty());
  REQUIRE(keeper.num_committed == 0);
  REQUIRE(writes.size() == 2);
  REQUIRE(writes[1]->finished == std::vector{kB, kC});
  written();
  REQUIRE_FALSE(log->dirty());
  REQUIRE(keeper.num_committed == 1);
  log->record(JobChange(JobForgotten{"job"}));
  loop.restart();
  loop.poll();
  REQUIRE(writes.size() == 3);
  REQUIRE_FALSE(writes[2]);
  // The term is over: what is under way is worth nothing.
  log->close();
  written();
  REQUIRE(log->dirty());
  REQUIRE(keeper.num_committed == 1);
}
