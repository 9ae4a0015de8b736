// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/jobs.h"

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/jobs_table.h"

using namespace muster;
using namespace std::chrono_literals;

TEST_CASE("jobs of the same shape and the same node ids know nothing of each other") {
  Table t;
  t.join(1, "a", 1, 2);
  t.join(2, "b", 1, 2);
  t.join(3, "a", 2, 2);
  REQUIRE(t.told<control::Assignment>(1));
  REQUIRE(t.told<control::Assignment>(3));
  REQUIRE_FALSE(t.told<control::Assignment>(2));
}

TEST_CASE("reasons are told to all who wait, and not more often than the interval") {
  Table t;
  t.join(1, "a", 1, 5);
  REQUIRE(t.told<control::Waiting>(1)->text == "1/5 nodes");
  t.effects.clear();
  t.join(2, "a", 2, 5);
  t.join(3, "a", 3, 5);
  REQUIRE(t.effects.deliveries.empty());
  REQUIRE(t.jobs.next_deadline() == t.now + 1s);
  t.now += 1s;
  t.jobs.advance(t.now);
  REQUIRE(t.effects.deliveries.size() == 1);
  REQUIRE(t.effects.deliveries[0].to == std::vector<ConnectionId>{1, 2, 3});
  REQUIRE(t.told<control::Waiting>(2)->text == "3/5 nodes");
  t.effects.clear();
  t.now += 2s;
  t.jobs.advance(t.now);
  REQUIRE(t.effects.deliveries.empty());
}

TEST_CASE("who comes when another has gone is told the reason, though it reads as before") {
  Table t;
  t.join(1, "a", 1, 5);
  t.now += 1s;
  t.join(2, "a", 2, 5);
  REQUIRE(t.told<control::Waiting>(2)->text == "2/5 nodes");
  t.effects.clear();
  t.jobs.receive(2, control::Leave{"stopped"}, t.now);
  t.join(3, "a", 3, 5);
  t.now += 1s;
  t.jobs.advance(t.now);
  REQUIRE(t.told<control::Waiting>(3));
  REQUIRE(t.told<control::Waiting>(3)->text == "2/5 nodes");
  REQUIRE_FALSE(t.told<control::Waiting>(1));  // nothing changed for it
}

TEST_CASE("a store that was lost with a coordinator ends the generation and uses no restart") {
  Table t;
  t.join(1, "a", 1, 2);
  t.join(2, "a", 2, 2);
  t.effects.clear();
  SECTION("of a member whose workers run") {
    for (int again = 0; again < 2; ++again) t.jobs.store_lost({"a", {0, 1}, 0}, t.now);
    for (const ConnectionId connection : {1, 2}) {
      const auto over = t.told<control::GenerationOver>(connection);
      REQUIRE(over);
      REQUIRE(over->generation == 0);
      REQUIRE(over->restarts_used == 0);
      REQUIRE(over->cause.kind == membership::Cause::Kind::kStoreLost);
      REQUIRE(over->cause.text.find("the workers' store of generation 0 was lost") != std::string::npos);
      t.jobs.receive(connection, control::Ready{0, 0}, t.now);
    }
    REQUIRE(t.told<control::Assignment>(2)->generation == 1);
    t.effects.clear();
    t.jobs.store_lost({"a", {0, 1}, 0}, t.now);  // it comes too late
    REQUIRE(t.effects.empty());
  }
  SECTION("not of one whose workers have all ended well") {
    t.jobs.receive(1, control::Finished{0}, t.now);
    t.effects.clear();
    t.jobs.store_lost({"a", {0, 1}, 0}, t.now);
    REQUIRE(t.effects.empty());
  }
}

TEST_CASE("an agent whose words are there and only not read yet is not lost") {
  Table t;
  t.join(1, "a", 1, 2);
  t.join(2, "a", 2, 2);
  t.now += 15s;
  auto overdue = t.jobs.overdue(t.now);
  std::sort(overdue.begin(), overdue.end());
  REQUIRE(overdue == std::vector<ConnectionId>{1, 2});
  REQUIRE(t.jobs.overdue(t.now - 1ms).empty());
  t.effects.clear();
  t.jobs.heard(1, t.now);
  t.jobs.advance(t.now);
  REQUIRE(t.told<control::Refused>(2)->reason == control::Refused::Reason::kLost);
  REQUIRE_FALSE(t.told<control::Refused>(1));
}

TEST_CASE("the first node is told which nodes will report nothing, also when the job is over") {
  Table t;
  for (const ConnectionId node : {1, 2, 3, 4}) t.join(node, "a", node, 4);
  control::Stop stop;
  stop.exit_code = 1;
  t.jobs.receive(2, stop, t.now);
  REQUIRE(t.jobs.find_round("a")->phase == membership::Phase::kClosed);
  t.effects.clear();
  t.jobs.disconnected(3, "reset", t.now);
  auto part = t.told<control::Report>(1);
  REQUIRE(part);
  REQUIRE((part->group_rank == 2 && part->host == "n3" && part->payload.empty() && part->generation == 0));
  t.effects.clear();
  t.now += 14s;
  for (const ConnectionId node : {1, 2}) t.jobs.receive(node, control::Heartbeat{}, t.now);
  REQUIRE(t.jobs.next_deadline() == t.now + 1s);
  t.now += 1s;
  t.jobs.advance(t.now);
  part = t.told<control::Report>(1);
  REQUIRE(part);
  REQUIRE((part->group_rank == 3 && part->payload.empty()));
  REQUIRE(t.told<control::Refused>(4)->reason == control::Refused::Reason::kLost);
  t.effects.clear();
  t.jobs.receive(1, control::Leave{"it is done"}, t.now);
  t.jobs.receive(2, control::Leave{"it is done"}, t.now);
  t.now += 60s;
  t.jobs.advance(t.now);
  REQUIRE(t.effects.deliveries.empty());
}

TEST_CASE("a node's word about workers that hang goes to the first node, the first node's to all others") {
  using Kind = control::Hang::Kind;
  Table t;
  for (const ConnectionId node : {1, 2, 3}) t.join(node, "a", static_cast<std::uint64_t>(node), 3);
  const auto first = static_cast<ConnectionId>(t.told<control::Assignment>(1)->group_rank == 0 ? 1 : 2);
  REQUIRE(t.told<control::Assignment>(first)->group_rank == 0);
  const auto generation = t.told<control::Assignment>(first)->generation;
  const ConnectionId other = first == 1 ? 2 : 1;
  t.effects.clear();
  t.jobs.receive(3, control::Hang{generation, Kind::kSnapshot, 1, "somebody", 7, "{}"}, t.now);
  REQUIRE(t.effects.deliveries.size() == 1);
  REQUIRE(t.told<control::Hang>(first) == control::Hang{generation, Kind::kSnapshot, 1, "n3", 2, "{}"});
  t.effects.clear();
  t.jobs.receive(first, control::Hang{generation, Kind::kRequestSnapshot, 1, {}, -1, {}}, t.now);
  REQUIRE(t.told<control::Hang>(other)->kind == Kind::kRequestSnapshot);
  REQUIRE(t.told<control::Hang>(3)->group_rank == 0);
  REQUIRE_FALSE(t.told<control::Hang>(first));
  t.effects.clear();
  // Not its part to play, and of another generation.
  t.jobs.receive(3, control::Hang{generation, Kind::kRequestSnapshot, 1, {}, -1, {}}, t.now);
  t.jobs.receive(first, control::Hang{generation, Kind::kDetected, 1, {}, -1, {}}, t.now);
  t.jobs.receive(3, control::Hang{generation + 1, Kind::kDetected, 1, {}, -1, {}}, t.now);
  REQUIRE(t.effects.deliveries.empty());
}

TEST_CASE("what nodes say for the status page takes the same way") {
  using Kind = control::Status::Kind;
  Table t;
  for (const ConnectionId node : {1, 2, 3}) t.join(node, "a", static_cast<std::uint64_t>(node), 3);
  const auto generation = t.told<control::Assignment>(1)->generation;
  const auto place = [&](ConnectionId node) { return t.told<control::Assignment>(node)->group_rank; };
  const ConnectionId first = place(1) == 0 ? 1 : place(2) == 0 ? 2 : 3;
  const ConnectionId other = first == 1 ? 2 : 1;
  const auto other_place = place(other);
  t.effects.clear();
  t.jobs.receive(first, control::Status{generation, Kind::kRequestStatus, 5s, {}, -1, {}}, t.now);
  REQUIRE(t.effects.deliveries.size() == 1);
  REQUIRE(t.effects.deliveries.front().to.size() == 2);
  REQUIRE(t.told<control::Status>(other)->lease == 5s);
  t.effects.clear();
  t.jobs.receive(other, control::Status{generation, Kind::kNode, {}, {}, -1, "x"}, t.now);
  t.jobs.receive(other, control::Status{generation, Kind::kRequestLog, {}, {}, -1, "0"}, t.now);
  REQUIRE(t.effects.deliveries.size() == 1);
  REQUIRE(t.told<control::Status>(first)->group_rank == other_place);
}

TEST_CASE("an agent that listens on all addresses is named by the one that it was seen under") {
  REQUIRE(reachable_status_address("0.0.0.0:9200", {"10.0.0.7", "10.0.1.7"}) == "10.0.0.7:9200");
  REQUIRE(reachable_status_address("[::]:9200", {"fe80::7"}) == "[fe80::7]:9200");
  REQUIRE(reachable_status_address("127.0.0.1:9200", {"10.0.0.7"}) == "127.0.0.1:9200");
  REQUIRE(reachable_status_address("", {"10.0.0.7"}).empty());
  REQUIRE(reachable_status_address("0.0.0.0:9200", {}) == "0.0.0.0:9200");
}

TEST_CASE("who asks for a stop of the workers is heard by the other members of its world") {
  Table t;
  for (const ConnectionId node : {1, 2, 3}) t.join(node, "a", static_cast<std::uint64_t>(node), 3);
  const auto generation = t.told<control::Assignment>(2)->generation;
  const auto rank = t.told<control::Assignment>(2)->group_rank;
  t.effects.clear();
  t.jobs.receive(2, control::StopWorkers{generation, 7}, t.now);
  for (const ConnectionId other : {1, 3})
    REQUIRE(t.told<control::StopWorkers>(other) == control::StopWorkers{generation, rank});
  REQUIRE_FALSE(t.told<control::StopWorkers>(2));
  // It decides nothing: that the generation is over says WorkerFailed.
  REQUIRE_FALSE(t.told<control::GenerationOver>(1));
  t.effects.clear();
  t.jobs.receive(2, control::StopWorkers{generation + 1}, t.now);
  REQUIRE(t.effects.deliveries.empty());
}

TEST_CASE("a job is forgotten when its last agent has gone, or kept for a while") {
  for (const Millis keep : {0ms, 5000ms}) {
    JobsOptions options;
    options.keep = keep;
    Table t(options);
    t.join(1, "a", 1, 1);
    t.jobs.receive(1, control::Finished{0}, t.now);
    REQUIRE(t.told<control::Closed>(1));
    t.jobs.receive(1, control::Leave{"done"}, t.now);
    t.jobs.disconnected(1, "eof", t.now);
    if (keep.count() > 0) {
      t.jobs.advance(t.now + keep - 1ms);
      REQUIRE(t.jobs.num_jobs() == 1);
    }
    REQUIRE(t.jobs.next_deadline() <= t.now + keep);
    t.jobs.advance(t.now + keep);
    REQUIRE(t.jobs.num_jobs() == 0);
    REQUIRE(t.jobs.next_deadline() == Instant::max());
  }
}

TEST_CASE("a job whose agents were cut off is remembered for them, and a new one may have its name") {
  JobsOptions options;
  Table t(options);
  t.join(1, "a", 1, 1);
  t.jobs.disconnected(1, "reset", t.now);
  t.jobs.advance(t.now + options.return_grace - 1ms);
  REQUIRE(t.jobs.num_jobs() == 1);
  t.effects.clear();
  t.join(2, "a", 1, 1);
  REQUIRE(t.told<control::Assignment>(2)->restarts_used == 1);
  REQUIRE(t.told<control::Assignment>(2)->generation == 1);
  t.jobs.disconnected(2, "reset", t.now);  // no restart is left
  REQUIRE(t.jobs.find_round("a")->phase == membership::Phase::kClosed);
  t.join(3, "a", 3, 2);
  REQUIRE(t.jobs.find_round("a")->phase == membership::Phase::kGathering);
  REQUIRE(t.jobs.find_round("a")->restarts_used == 0);
  t.jobs.disconnected(3, "reset", t.now);
  t.join(4, "a", 4, 1);  // with other rules
  REQUIRE(t.told<control::Assignment>(4));
  t.jobs.receive(4, control::Finished{t.told<control::Assignment>(4)->generation}, t.now);
  t.jobs.receive(4, control::Leave{"done"}, t.now);
  t.jobs.advance(t.now);
  REQUIRE(t.jobs.num_jobs() == 0);
}

TEST_CASE("who is refused is not listened to until it hears of it, and its repetitions take no memory") {
  Table t;
  t.join(1, "a", 1, 2);
  control::Join join;
  join.settings.min_nodes = join.settings.max_nodes = 3;
  t.jobs.connected(2, "a", "127.0.0.1");
  t.effects.clear();
  for (int i = 0; i < 1000; ++i) {
    t.jobs.receive(1, join, t.now);
    t.jobs.receive(2, join, t.now);
    t.jobs.receive(1, control::WorkerFailed{0, 0, 1, true, false, "x"}, t.now);
  }
  REQUIRE(t.effects.deliveries.size() <= 3);  // one refusal each, and perhaps a reason
  REQUIRE(t.effects.log.size() <= 1);
  t.jobs.receive(1, control::Heartbeat{}, t.now);
  REQUIRE(t.effects.heartbeats == std::vector<ConnectionId>{1});
}

TEST_CASE("a new job under the name of one that is over begins after its last generation") {
  JobsOptions options;
  options.keep = 1h;
  Table t(options);
  t.join(1, "a", 1, 1);
  t.jobs.receive(1, control::Finished{0}, t.now);
  t.join(2, "a", 2, 1);
  REQUIRE(t.told<control::Refused>(2)->reason == control::Refused::Reason::kBusy);
  REQUIRE(t.told<control::Refused>(2)->text ==
          "the former job of this name is over (it succeeded), and 1 of its agents have not gone yet; a new "
          "one begins when they have gone");
  t.jobs.disconnected(1, "eof", t.now);
  t.effects.clear();
  t.join(3, "a", 3, 1);
  REQUIRE(t.told<control::Assignment>(3)->generation == 1);
}

TEST_CASE("who comes back between two generations is told how the job has ended, another node is refused") {
  Table t;
  for (const std::uint64_t node : {1, 2, 3}) t.join(node, "a", node, 1);  // two of them wait as spares
  t.jobs.disconnected(2, "reset", t.now);
  t.jobs.receive(3, control::Leave{"told to go"}, t.now);
  t.jobs.receive(1, control::Finished{0}, t.now);
  REQUIRE(t.told<control::Closed>(1)->cause.kind == membership::Cause::Kind::kSucceeded);
  t.join(12, "a", 2, 1);
  REQUIRE(t.told<control::Closed>(12)->cause.kind == membership::Cause::Kind::kSucceeded);
  t.now += 1s;
  t.age = 2s;
  for (const std::uint64_t node : {3, 4}) {
    t.join(10 + node, "a", node, 1);
    REQUIRE(t.told<control::Refused>(10 + node)->reason == control::Refused::Reason::kOver);
  }
  // Nor does it begin a new job of that name when the others have gone.
  for (const ConnectionId connection : {1, 12}) t.jobs.disconnected(connection, "gone", t.now);
  t.effects.clear();
  t.join(22, "a", 2, 1);
  REQUIRE(t.told<control::Closed>(22)->cause.kind == membership::Cause::Kind::kSucceeded);
}

TEST_CASE("limits on jobs and nodes refuse with their option's name") {
  JobsOptions options;
  options.max_jobs = 1;
  options.max_nodes_per_job = 1;
  Table t(options);
  t.join(1, "a", 1, 2);
  t.join(2, "b", 2, 2);
  REQUIRE(t.told<control::Refused>(2)->text.find("--max-jobs") != std::string::npos);
  t.join(3, "a", 3, 2);
  REQUIRE(t.told<control::Refused>(3)->text.find("nodes, the limit") != std::string::npos);
}

TEST_CASE("a coordinator of one job refuses the agents of another") {
  JobsOptions options;
  options.only_job = "a";
  Table t(options);
  t.join(1, "b", 1, 1);
  REQUIRE(t.told<control::Refused>(1)->reason == control::Refused::Reason::kSettings);
  REQUIRE(t.told<control::Refused>(1)->text.find("serves job a alone, not b") != std::string::npos);
  t.join(2, "a", 2, 1);
  REQUIRE(t.told<control::Assignment>(2)->generation == 0);
}

TEST_CASE("messages that an agent has no business to send are refused") {
  Table t;
  t.jobs.connected(1, "a", "127.0.0.1");
  t.jobs.receive(1, control::Finished{0}, t.now);
  REQUIRE(t.told<control::Refused>(1)->text == "Finished before Join");
  t.join(2, "a", 2, 2);
  t.jobs.receive(2, control::Assignment{}, t.now);
  REQUIRE(t.told<control::Refused>(2)->text == "an agent does not send Assignment");
  t.join(3, "a", 3, 2);
  t.jobs.receive(3, control::Join{}, t.now);
  REQUIRE(t.told<control::Refused>(3)->text == "a second Join on one connection");
}

TEST_CASE("words of an agent reach other terminals without control characters") {
  Table t;
  t.join(1, "a", 1, 1);
  t.jobs.receive(1, control::WorkerFailed{0, 0, 1, false, false, "\x1b[2Jboo\n"}, t.now);
  REQUIRE(t.told<control::Closed>(1)->cause.text == "boo ");
}

TEST_CASE("a node that comes back before it heard of its world is told of it on its new connection") {
  Table t;
  t.join(1, "a", 1, 2);
  t.join(2, "a", 2, 2);
  t.effects.clear();
  t.join(3, "a", 2, 2);
  REQUIRE(t.told<control::Refused>(2)->reason == control::Refused::Reason::kLost);
  REQUIRE(t.told<control::Assignment>(3)->group_rank == 1);
  t.jobs.disconnected(2, "reset", t.now);
  REQUIRE_FALSE(t.told<control::GenerationOver>(1));
}

TEST_CASE("a heartbeat that a world waits for makes it") {
  Table t;
  t.join(1, "a", 1, 2);
  t.now += 8s;  // of 15
  t.join(2, "a", 2, 2);
  REQUIRE_FALSE(t.told<control::Assignment>(2));
  t.jobs.receive(2, control::Heartbeat{}, t.now);
  REQUIRE_FALSE(t.told<control::Assignment>(2));
  t.jobs.receive(1, control::Heartbeat{}, t.now);
  REQUIRE(t.told<control::Assignment>(2));
}

TEST_CASE("of what a node offers, the address that it is seen under comes first") {
  using Addresses = std::vector<std::string>;
  // --iface or --local-addr excludes it, or it is somebody else's.
  REQUIRE(reachable_addresses({"10.0.0.1", "127.0.0.1"}, "192.168.0.7") ==
          Addresses{"10.0.0.1", "127.0.0.1"});
  REQUIRE(reachable_addresses({"127.0.0.1"}, "192.168.0.7") == Addresses{"192.168.0.7", "127.0.0.1"});
  REQUIRE(reachable_addresses({"10.0.0.1", "192.168.0.7"}, "192.168.0.7") ==
          Addresses{"192.168.0.7", "10.0.0.1"});
  REQUIRE(reachable_addresses({"10.0.0.1"}, "127.0.0.1") == Addresses{"10.0.0.1"});
  REQUIRE(reachable_addresses({}, "::1") == Addresses{"::1"});
}

TEST_CASE(
    "why a node is unhealthy is told to all who wait, as one clean line, and it is told that they go on") {
  Table t;
  t.join(1, "a", 1, 2, "a full\ndisk");
  t.join(2, "a", 2, 2);
  t.now += 2s;
  t.jobs.advance(t.now);
  REQUIRE(t.told<control::Waiting>(2)->text == "1/2 nodes; n1 is unhealthy: a full disk");
  t.join(3, "a", 3, 2);
  REQUIRE(t.told<control::Assignment>(2));
  REQUIRE(t.told<control::Assignment>(3));
  REQUIRE_FALSE(t.told<control::Assignment>(1));
  REQUIRE(t.told<control::Waiting>(1)->outside);
  // One that comes when they run already is told so at once.
  t.join(4, "a", 4, 2, "no GPU");
  REQUIRE(t.told<control::Waiting>(4)->outside);
}
