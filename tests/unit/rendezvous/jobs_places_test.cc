// SPDX-License-Identifier: Apache-2.0
// Who gets a place in the world, and who waits outside it.
#include "rendezvous/coordinator/jobs.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/jobs_table.h"

using namespace muster;
using namespace std::chrono_literals;

TEST_CASE("a spare is told that it is one, and swapped in") {
  Table t;
  t.join(1, "a", 1, 1);
  t.join(2, "a", 2, 1);
  REQUIRE(t.told<control::Waiting>(2)->outside);
  REQUIRE(t.told<control::Waiting>(2)->master_addresses.empty());  // its workers' store would be here
  t.jobs.disconnected(1, "reset", t.now);
  const auto assignment = t.told<control::Assignment>(2);
  REQUIRE(assignment);
  REQUIRE(assignment->group_rank == 0);
  REQUIRE(assignment->generation == 1);
  REQUIRE(assignment->restarts_used == 1);
}

TEST_CASE(
    "who is outside the world is told where its first node is, in order to try whether it can be reached") {
  Table t;
  const auto join = [&](ConnectionId connection) {
    t.jobs.connected(connection, "a", "10.0.0." + std::to_string(connection));
    control::Join message;
    message.request.id = {0, connection};
    message.request.host = "n" + std::to_string(connection);
    message.request.addresses = {"10.0.0." + std::to_string(connection)};
    message.request.master_port = 4711;
    message.settings.max_restarts = 1;
    t.jobs.receive(connection, message, t.now);
  };
  for (const ConnectionId connection : {1, 2, 3}) join(connection);
  for (const ConnectionId connection : {2, 3}) {
    REQUIRE(t.told<control::Waiting>(connection)->master_addresses == std::vector<std::string>{"10.0.0.1"});
    REQUIRE(t.told<control::Waiting>(connection)->master_port == 4711);
    REQUIRE(t.told<control::Waiting>(connection)->master_host == "n1");
  }
  // And again when there is another one.
  t.jobs.disconnected(1, "reset", t.now);
  REQUIRE(t.told<control::Assignment>(2));
  REQUIRE(t.told<control::Waiting>(3)->master_host == "n2");
}

TEST_CASE("a node beyond MAX and the spares that never ran is no success") {
  Table t;
  t.join(1, "a", 1, 1);
  t.join(2, "a", 2, 1);
  REQUIRE(t.told<control::Waiting>(2)->text.find("needs another --rdzv-id") != std::string::npos);
  t.jobs.receive(1, control::Finished{0}, t.now);
  REQUIRE(t.told<control::Closed>(1)->cause.kind == membership::Cause::Kind::kSucceeded);
  REQUIRE_FALSE(t.told<control::Closed>(2));
  const auto refused = t.told<control::Refused>(2);
  REQUIRE(refused);
  REQUIRE(refused->reason == control::Refused::Reason::kOver);
  REQUIRE(refused->text.find("one more than --nnodes=1 and --spares=0") != std::string::npos);
  REQUIRE(refused->text.find("--rdzv-id") != std::string::npos);
}

TEST_CASE(
    "of those that wait outside the first ones are the spares, and the others are told that nothing ran") {
  Table t;
  t.spares = 1;
  t.join(1, "a", 1, 1);
  t.join(2, "a", 2, 1);
  t.join(3, "a", 3, 1);
  t.jobs.receive(1, control::Finished{0}, t.now);
  REQUIRE(t.told<control::Closed>(2)->cause.kind == membership::Cause::Kind::kSucceeded);
  REQUIRE_FALSE(t.told<control::Refused>(2));
  REQUIRE(t.told<control::Refused>(3));
  REQUIRE_FALSE(t.told<control::Closed>(3));
}

TEST_CASE("a member that is asked to stop leaves alone where a spare is there, and else ends the job") {
  for (const bool spare : {true, false}) {
    Table t;
    t.spares = 1;
    t.join(1, "a", 1, 1);
    if (spare) t.join(2, "a", 2, 1);
    t.jobs.receive(1, control::Stop{143, "stopped by SIGTERM", true}, t.now);
    REQUIRE(t.told<control::Closed>(1)->cause.kind == membership::Cause::Kind::kStopped);
    REQUIRE(t.told<control::Closed>(1)->cause.exit_code == 143);
    REQUIRE(t.jobs.find_round("a")->phase ==
            (spare ? membership::Phase::kRunning : membership::Phase::kClosed));
    t.effects.clear();
    t.jobs.receive(1, control::Leave{"it is done"}, t.now);
    t.jobs.disconnected(1, "eof", t.now);
    REQUIRE_FALSE(t.told<control::Refused>(1));
    if (!spare) continue;
    REQUIRE_FALSE(t.told<control::Closed>(2));
    REQUIRE(t.jobs.find_round("a")->restarts_used == 0);
    t.jobs.receive(2, control::Finished{1}, t.now);
    REQUIRE(t.told<control::Closed>(2)->cause.kind == membership::Cause::Kind::kSucceeded);
  }
}

TEST_CASE("an unhealthy node that stays takes no spare's place, and who was one too many is refused again") {
  Table t;
  t.spares = 1;
  t.join(1, "a", 1, 1, "disk full");
  t.join(2, "a", 2, 1);
  t.join(3, "a", 3, 1);
  t.join(4, "a", 4, 1);
  t.jobs.receive(2, control::Finished{0}, t.now);
  REQUIRE(t.told<control::Closed>(3)->cause.kind == membership::Cause::Kind::kSucceeded);
  REQUIRE_FALSE(t.told<control::Refused>(3));
  REQUIRE(t.told<control::Refused>(4)->reason == control::Refused::Reason::kOver);
  t.effects.clear();
  t.age = 1s;
  t.join(5, "a", 4, 1);
  REQUIRE_FALSE(t.told<control::Closed>(5));
  REQUIRE(t.told<control::Refused>(5)->reason == control::Refused::Reason::kOver);
}
