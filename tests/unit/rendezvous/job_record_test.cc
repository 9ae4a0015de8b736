// SPDX-License-Identifier: Apache-2.0
// Jobs that go on in another process: what is kept of them, and what their agents are told when they come
// back.
#include "rendezvous/coordinator/job_record.h"

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/kept_table.h"

using namespace muster;
using namespace std::chrono_literals;
using membership::Phase;
using muster::test::kGrace;
using muster::test::Table;

TEST_CASE("a record is what its bytes say, and other bytes are none") {
  JobRecord record;
  record.settings.cool_down = 5s;
  record.settings.max_restarts = 1;
  record.phase = Phase::kClosed;
  record.restarts_used = 1;
  record.progress.steps.note(0, {1, 7}, true);
  record.progress.steps.note(1, {}, true);
  record.progress.reached = {2, 9};
  record.world = {3, 2, {{{1, 2}, "n1", "m", "r", 4, 2, 0, 0, 2}}, {"10.0.0.4", "fd00::4"}, 4711};
  record.finished = {{1, 2}};
  record.excluded = {{"m", 30ms}};
  record.known = {{3, 4}, {5, 6}};
  record.gone = {{1, 2}};
  record.ending = {membership::Cause::Kind::kWorkerFailed, "n1", 0, 1, 9, "killed"};
  std::string bytes;
  encode(record, bytes);
  REQUIRE(decode_job(bytes) == record);
  // The members' order is the format. Changed? Then raise kStateMark (etcd/election.cc) and kVersion
  // (wal/journal.cc).
  REQUIRE(sip_hash(bytes, {}) == 0x2fb7183ba4b4325f);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    REQUIRE_FALSE(decode_job(std::string_view(bytes).substr(0, size)));
  REQUIRE_FALSE(decode_job(bytes + "x"));
  record.phase = Phase::kRunning;
  record.world.slots.clear();
  bytes.clear();
  encode(record, bytes);
  REQUIRE_FALSE(decode_job(bytes));
}

TEST_CASE(
    "a running world goes on: members resume, nobody is told that it is over, the budget is as before") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.say(2, control::WorkerFailed{0, 3, 1, true, false, "oops"});
  t.say(1, control::Ready{0, 1});
  t.say(2, control::Ready{0, 2});
  REQUIRE(t.told<control::Assignment>(1).back().generation == 1);
  t.crash();
  REQUIRE(t.round().phase == Phase::kRunning);
  REQUIRE(t.round().world.generation == 1);
  REQUIRE(t.round().restarts_used == 1);
  t.join(1, 2, 1);
  t.join(2, 2, 1);
  t.pass(kGrace + 1s);
  REQUIRE(t.told<control::GenerationOver>(1).empty());
  REQUIRE(t.told<control::Assignment>(1).empty());
  REQUIRE(t.round().phase == Phase::kRunning);
  t.say(1, control::WorkerFailed{1, 0, 1, true, false, "again"});
  REQUIRE(t.told<control::GenerationOver>(2).size() == 1);
  REQUIRE(t.told<control::GenerationOver>(2)[0].restarts_used == 2);
}

TEST_CASE("a member that does not come back within the grace is lost as any other") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.crash();
  t.join(1, 2, 0);
  t.pass(kGrace - 1s);
  REQUIRE(t.told<control::GenerationOver>(1).empty());
  t.pass(2s);
  REQUIRE(t.told<control::GenerationOver>(1).size() == 1);
  REQUIRE(t.told<control::GenerationOver>(1)[0].cause.kind == membership::Cause::Kind::kNodeLost);
  REQUIRE_THAT(t.told<control::GenerationOver>(1)[0].cause.text, Catch::Contains("not back within"));
}

TEST_CASE("members who had not heard of their world yet are told of it, and it costs no restart") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.crash();  // the assignments were on their way
  t.join(1, 2);
  t.join(2, 2);
  for (const std::uint64_t node : {1, 2}) {
    REQUIRE(t.told<control::Assignment>(node).size() == 1);
    REQUIRE(t.told<control::Assignment>(node)[0].generation == 0);
    REQUIRE(t.told<control::Assignment>(node)[0].group_rank == static_cast<int>(node) - 1);
    REQUIRE(t.told<control::GenerationOver>(node).empty());
  }
  REQUIRE(t.round().restarts_used == 0);
  t.say(1, control::Finished{0});
  t.say(2, control::Finished{0});
  REQUIRE(t.told<control::Closed>(1).size() == 1);
}

TEST_CASE("a member is told where the first node is, though that one is not back yet") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.crash();
  t.join(2, 2);
  const auto told = t.told<control::Assignment>(2);
  REQUIRE(told.size() == 1);
  REQUIRE(told[0].group_rank == 1);
  REQUIRE(told[0].master_port == 4001);
  REQUIRE(told[0].master_addresses == std::vector<std::string>{"127.0.0.1"});
  REQUIRE(told[0].master_host == "n1");
}

TEST_CASE("a gathering goes on from its generation and its budget with whoever comes") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.say(2, control::WorkerFailed{0, 3, 1, true, false, "oops"});
  t.say(1, control::Ready{0, 1});
  t.crash();  // node 2 has not said that it is ready, or even heard that it has to be
  REQUIRE(t.round().phase == Phase::kGathering);
  t.join(1, 2);
  t.join(2, 2, 0);
  REQUIRE(t.told<control::GenerationOver>(1).empty());
  REQUIRE(t.told<control::GenerationOver>(2).size() == 1);
  REQUIRE(t.told<control::GenerationOver>(2)[0].restarts_used == 1);
  t.say(2, control::Ready{0, 2});
  REQUIRE(t.told<control::Assignment>(1).size() == 1);
  REQUIRE(t.told<control::Assignment>(1)[0].generation == 1);
  REQUIRE(t.told<control::Assignment>(1)[0].restarts_used == 1);
}

TEST_CASE("how far the last generation came outlives a coordinator that dies while nodes gather") {
  Table t;
  t.without_progress = 1;
  t.join(1, 2);
  t.join(2, 2);
  t.say(2, control::WorkerFailed{0, 3, 1, true, false, "oops", {0, 100}});
  t.say(1, control::Ready{0, 1, {0, 100}});
  t.say(2, control::Ready{0, 2});
  t.say(2, control::WorkerFailed{1, 3, 1, true, false, "oops"});
  SECTION("as those told who were ready") {
    t.say(1, control::Ready{1, 1, {0, 150}});
    t.crash();
    t.join(1, 2);
    t.join(2, 2, 1);
    t.say(2, control::Ready{1, 2});
    REQUIRE(t.told<control::Assignment>(1).size() == 1);
    REQUIRE(t.round().steps.best == StepProgress{0, 150});
    t.crash();
    REQUIRE(t.round().steps.best == StepProgress{0, 150});
    REQUIRE(t.round().steps.last.size() == 2);
  }
  SECTION("and that no step was gained") {
    t.crash();
    t.join(1, 2, 1);
    t.join(2, 2, 1);
    t.say(1, control::Ready{1, 1, {0, 90}});
    t.say(2, control::Ready{1, 2});
    REQUIRE(t.told<control::Closed>(1).size() == 1);
    REQUIRE(t.told<control::Closed>(1)[0].cause.exit_code == kNoProgressExitCode);
  }
}

TEST_CASE("a node that was away while a world was formed is told that it is outside") {
  Table t;
  t.join(1, 1);
  t.say(1, control::WorkerFailed{0, 0, 1, true, false, "oops"});
  t.say(1, control::Ready{0, 1});
  t.join(2, 1, 0);
  REQUIRE(t.told<control::Waiting>(2).empty());
  t.say(2, control::Ready{0, 2});
  REQUIRE(t.told<control::Waiting>(2).size() == 1);
  REQUIRE(t.told<control::Waiting>(2)[0].outside);
}

TEST_CASE("a node of a forgotten world whose number is used again gets a place in a later one") {
  Table t;
  t.join(1, 1);
  t.join(2, 1, 0);  // it has run a generation 0 of which this coordinator knows nothing
  REQUIRE(t.told<control::GenerationOver>(2).size() == 1);
  t.say(2, control::Ready{0, 2});
  REQUIRE(t.told<control::Waiting>(2).size() == 1);
  REQUIRE(t.told<control::Waiting>(2)[0].outside);
  REQUIRE(t.told<control::GenerationOver>(1).empty());
  t.say(1, control::Leave{"done with it"});
  REQUIRE(t.told<control::Assignment>(2).size() == 1);
  REQUIRE(t.told<control::Assignment>(2)[0].generation == 1);
}

TEST_CASE("a node that says twice that it has finished is kept once") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.say(2, control::Finished{0});
  const std::size_t size = t.log.size();
  t.say(2, control::Finished{0});
  REQUIRE(t.log.size() == size);
}

TEST_CASE("who had finished stays so, and may be gone") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.say(2, control::Finished{0});
  t.crash();
  REQUIRE(t.round().num_finished == 1);
  t.join(1, 2, 0);
  t.pass(kGrace + 1s);  // node 2 does not come back
  REQUIRE(t.told<control::GenerationOver>(1).empty());
  t.say(1, control::Finished{0});
  REQUIRE(t.told<control::Closed>(1).size() == 1);
  REQUIRE(t.told<control::Closed>(1)[0].cause.kind == membership::Cause::Kind::kSucceeded);
}

TEST_CASE("an agent that was away when its job ended is told how, and begins no new one") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.say(1, control::WorkerFailed{0, 1, 9, false, false, "no use"});
  t.crash();
  t.join(2, 2, 0);
  REQUIRE(t.told<control::Closed>(2).size() == 1);
  REQUIRE(t.told<control::Closed>(2)[0].cause.text == "no use");
  REQUIRE(t.told<control::Refused>(2).empty());
  t.say(2, control::Leave{"done"});
  t.pass(JobsOptions{}.return_grace - 1s);
  REQUIRE(t.jobs->find_round("job") != nullptr);  // node 1 may come back too
  t.pass(1s);
  REQUIRE(t.jobs->find_round("job") == nullptr);
  t.crash();
  REQUIRE(t.jobs->find_round("job") == nullptr);  // forgotten for good
}

TEST_CASE(
    "whoever took part hears how its job ended from another process too, and no other node begins it anew") {
  Table t;
  for (const std::uint64_t node : {1, 2, 3}) t.join(node, 1);  // two of them wait as spares
  t.say(1, control::WorkerFailed{0, 0, 9, false, false, "no use"});
  REQUIRE(t.told<control::Closed>(2).size() == 1);
  t.jobs->disconnected(3, "eof", t.now);
  t.crash();
  t.join(4, 1);
  REQUIRE(t.told<control::Refused>(4).size() == 1);
  REQUIRE(t.told<control::Refused>(4)[0].reason == control::Refused::Reason::kBusy);
  REQUIRE_THAT(t.told<control::Refused>(4)[0].text,
               Catch::Contains("its agents may come back to hear of it"));
  t.crash();  // what it keeps is kept again
  for (const std::uint64_t node : {2, 3}) {
    t.join(node, 1);
    REQUIRE(t.told<control::Closed>(node).size() == 1);
    REQUIRE(t.told<control::Assignment>(node).empty());
  }
  t.say(2, control::Leave{"done"});
  t.say(3, control::Leave{"done"});
  t.join(4, 1);  // the first node is expected yet
  REQUIRE(t.told<control::Refused>(4).size() == 1);
  t.pass(kGrace);
  t.jobs->disconnected(4, "refused", t.now);
  t.join(5, 1);
  REQUIRE(t.told<control::Assignment>(5).size() == 1);
}

TEST_CASE(
    "a job over whose agents had all gone gives way to a new one of its name, also in another process") {
  Table t;
  t.join(1, 2);
  t.join(2, 2);
  t.jobs->disconnected(2, "reset", t.now);  // it may have been cut off: the job is remembered for it
  t.say(1, control::Ready{0, 1});
  t.say(1, control::Stop{0, "enough", false});
  t.jobs->disconnected(1, "eof", t.now);
  REQUIRE(t.round().phase == Phase::kClosed);
  t.crash();
  SECTION("who was away hears of its end") {
    t.join(2, 2, 0);
    REQUIRE(t.told<control::Closed>(2).size() == 1);
  }
  SECTION("other nodes take the name") {
    t.join(3, 2);
    t.join(4, 2);
    REQUIRE(t.told<control::Assignment>(3).size() == 1);
    REQUIRE(t.told<control::Assignment>(3)[0].generation == 1);
  }
}

TEST_CASE("a job that nobody comes back to is forgotten after the grace") {
  Table t;
  t.join(1, 1);
  t.crash();
  REQUIRE(t.jobs->num_jobs() == 1);
  t.now += kGrace;
  t.jobs->advance(t.now);
  REQUIRE(t.jobs->num_jobs() == 0);
}

TEST_CASE("who waits for a first world leaves nothing behind") {
  Table t;
  t.join(1, 2);
  t.crash();
  REQUIRE(t.jobs->num_jobs() == 0);
}

TEST_CASE(
    "a new job under a kept name goes on with its generations, also if the coordinator dies before its "
    "world") {
  Table t;
  t.join(1, 1);
  t.say(1, control::WorkerFailed{0, 0, 9, false, false, "no use"});
  t.jobs->disconnected(1, "eof", t.now);
  REQUIRE(t.round().phase == Phase::kClosed);
  t.join(2, 2);  // the former one is still remembered
  REQUIRE(t.round().phase == Phase::kGathering);
  t.crash();
  t.join(2, 2);
  t.join(3, 2);
  REQUIRE(t.told<control::Assignment>(3).size() == 1);
  REQUIRE(t.told<control::Assignment>(3)[0].generation == 1);
  REQUIRE(t.told<control::Assignment>(3)[0].restarts_used == 0);
}
