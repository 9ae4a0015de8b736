// SPDX-License-Identifier: Apache-2.0
// A hang over several nodes: who is asked, when there is a report, and what it says of all ranks.
#include "launcher/hang/hang_session.h"

#include <csignal>

#include "launcher/hang/hang_report.h"
#include "launcher/hang/snapshot.h"
#include "launcher/report/job_report.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
using Actions = HangSession::Actions;
using Ranks = std::vector<int>;

namespace {

const Instant kStart{};
constexpr Millis kSecond{1000};

NodeSnapshot snapshot_of(int node, bool hanging, const std::vector<std::string>& words,
                         const char* function = "all_reduce") {
  NodeSnapshot out;
  out.hanging = hanging;
  out.report.host = "n" + std::to_string(node);
  out.report.wall_time_s = 1700000000 + node;
  out.report.limit = 240 * kSecond;
  for (const std::string& word : words) {
    RankSnapshot& rank = out.report.ranks.emplace_back();
    rank.local_rank = static_cast<int>(out.report.ranks.size()) - 1;
    rank.rank = node * static_cast<int>(words.size()) + rank.local_rank;
    rank.pid = 100 + rank.rank;
    rank.stalled = hanging;
    if (hanging) rank.idle_time = (250 + node) * kSecond;
    rank.progress = word;
    rank.tool = "gdb";
    rank.stacks.push_back({"Thread 1", {"read", function, "main"}});
    out.report.idle_time = std::max(out.report.idle_time, rank.idle_time);
  }
  return out;
}

/// Seven ranks in the all-reduce of step 42, rank 5 on n2 still in its data.
std::map<int, NodeSnapshot> seven_and_one() {
  std::map<int, NodeSnapshot> out;
  for (int node = 0; node < 4; ++node)
    out[node] = snapshot_of(node, true, {"epoch 1 step 42/99 all_reduce", "epoch 1 step 42/99 all_reduce"});
  out[2].report.ranks[1] =
      snapshot_of(2, true, {"", "epoch 1 step 42/99 data"}, "next_batch").report.ranks[1];
  return out;
}

}  // namespace

TEST_CASE("one node's report makes all be asked, and the last snapshot makes the report") {
  HangSession session(3);
  REQUIRE(session.reported(1, kStart) == Actions{.ask = true});
  REQUIRE(session.number() == 1);
  REQUIRE(session.reported(2, kStart) == Actions{});  // it has been asked
  REQUIRE(session.snapshot(1, 1, snapshot_of(1, true, {"a"}), kStart) == Actions{});
  REQUIRE(session.snapshot(0, 1, snapshot_of(0, false, {"a"}), kStart) == Actions{});
  REQUIRE(session.snapshot(2, 1, snapshot_of(2, true, {"a"}), kStart) == Actions{.publish = true});
  REQUIRE(session.snapshots().size() == 3);
  REQUIRE(session.hanging());
  // Whoever falls silent for the same hang gets no report of its own.
  REQUIRE(session.reported(0, kStart + kSecond) == Actions{.known = true});
}

TEST_CASE("who does not answer in time is not waited for") {
  HangSession session(3);
  (void)session.reported(0, kStart);
  (void)session.snapshot(0, 1, snapshot_of(0, true, {"a"}), kStart);
  REQUIRE(session.tick(kStart + kSecond) == Actions{});
  REQUIRE(session.tick(*session.deadline()) == Actions{.publish = true});
  REQUIRE(session.snapshots().size() == 1);
  REQUIRE(session.snapshot(1, 1, snapshot_of(1, true, {"a"}), kStart) == Actions{});  // too late
  REQUIRE(session.snapshots().size() == 1);
}

TEST_CASE("a hang is over when it is on all nodes, and the next one has another number") {
  HangSession session(2);
  (void)session.reported(0, kStart);
  (void)session.snapshot(0, 1, snapshot_of(0, true, {"a"}), kStart);
  (void)session.snapshot(1, 1, snapshot_of(1, true, {"a"}), kStart);
  REQUIRE(session.over(1, {1}, {}) == Actions{});
  REQUIRE(session.over(1, {1}, {}) == Actions{});
  REQUIRE(session.over(0, {}, {0}) == Actions{.over = true});
  REQUIRE(session.moved() == Ranks{1});
  REQUIRE(session.ended() == Ranks{0});
  REQUIRE(session.reported(1, kStart) == Actions{.ask = true});
  REQUIRE(session.number() == 2);
  REQUIRE(session.snapshot(0, 1, snapshot_of(0, true, {"a"}), kStart) == Actions{});  // of the last one
  REQUIRE(session.snapshots().empty());
}

TEST_CASE("a hang that ended while stacks were read is over with its report") {
  HangSession session(2);
  (void)session.reported(1, kStart);
  NodeSnapshot gone = snapshot_of(1, false, {"a"});
  gone.moved = {1};
  REQUIRE(session.over(1, {1}, {}) == Actions{});  // before its part came
  (void)session.snapshot(1, 1, gone, kStart);
  REQUIRE(session.snapshot(0, 1, snapshot_of(0, false, {"a"}), kStart) ==
          Actions{.publish = true, .over = true});
  REQUIRE(session.moved() == Ranks{1});
  REQUIRE_FALSE(session.hanging());
}

TEST_CASE("a node that reports again while it is known to hang begins a new hang") {
  HangSession session(2);
  (void)session.reported(1, kStart);
  (void)session.snapshot(0, 1, snapshot_of(0, false, {"a"}), kStart);
  (void)session.snapshot(1, 1, snapshot_of(1, true, {"a"}), kStart);
  REQUIRE(session.reported(1, kStart) == Actions{.ask = true});
  session.forget();
  REQUIRE(session.deadline() == std::nullopt);
  REQUIRE(session.reported(1, kStart) == Actions{.ask = true});
  REQUIRE(session.number() == 3);
}

TEST_CASE("a node that does not exist has no part") {
  HangSession session(1);
  (void)session.reported(0, kStart);
  REQUIRE(session.snapshot(7, 1, snapshot_of(7, true, {"a"}), kStart) == Actions{});
  REQUIRE(session.snapshot(-1, 1, snapshot_of(7, true, {"a"}), kStart) == Actions{});
}

TEST_CASE("of the ranks of all nodes the one that the others wait for is named with its host") {
  const HangReport report = merged(seven_and_one(), 4);
  REQUIRE(report.outliers == Outliers{{5}, "at the same step, but in \"data\""});
  REQUIRE(suspect(report).rank == 5);
  REQUIRE(suspect(report).node == 2);
  REQUIRE(hang_text(report, "nothing is done") ==
          "muster: hang on n0, n1, n2, n3: ranks 0-7 made no progress for 253 s (limit 240 s); nothing is "
          "done\n"
          "  outlier: rank 5 on n2: at the same step, but in \"data\"\n"
          "  rank 5 on n2: \"epoch 1 step 42/99 data\"\n"
          "    gdb: read <- next_batch <- main\n"
          "  ranks 0-4,6-7 on n0, n1, n2, n3: \"epoch 1 step 42/99 all_reduce\"\n"
          "    gdb: read <- all_reduce <- main\n");
  const std::vector hangs{report};
  const std::string json = hangs_to_json(hangs);
  REQUIRE(json.find("\"answered\": true") != std::string::npos);
  REQUIRE(json.find("\"host\": \"n3\"") != std::string::npos);
}

TEST_CASE("a node that has not answered is named") {
  auto parts = seven_and_one();
  parts.erase(3);
  parts.erase(1);
  const auto head = hang_head(merged(parts, 4));
  REQUIRE(head.size() == 3);
  REQUIRE(head[2] == "no answer from nodes 1,3: the state of their ranks is not known");
  REQUIRE(hang_head(merged(parts, 3))[2] == "no answer from node 1: the state of its ranks is not known");
}

TEST_CASE("a rank that announced a pause on another node is named") {
  auto parts = seven_and_one();
  REQUIRE(pause_text(merged(parts, 4)).empty());
  parts[2].report.ranks[1].paused = "announced a pause";
  REQUIRE(pause_text(merged(parts, 4)) == "rank 5 announced a pause");
}

TEST_CASE("ranks that give no signs of life are not said to go on") {
  auto parts = seven_and_one();
  for (auto& [node, part] : parts)
    for (RankSnapshot& rank : part.report.ranks) {
      rank.progress.clear();
      rank.stalled = rank.watched = rank.rank == 0;
    }
  const HangReport report = merged(parts, 4);
  REQUIRE(report.outliers == Outliers{{5}, "its stack differs from the others': it is in read"});
}

TEST_CASE("the end of a hang names who goes on and who has ended") {
  REQUIRE(over_text(12 * kSecond, {1, 2, 3}, {}) ==
          "the hang is over after 12.0 s: ranks 1-3 make progress again");
  REQUIRE(over_text(12 * kSecond, {1}, {4}) ==
          "the hang is over after 12.0 s: rank 1 makes progress again, rank 4 has ended");
  REQUIRE(over_text(12 * kSecond, {}, {4}) == "the hang is over after 12.0 s: rank 4 has ended");
}

TEST_CASE("a node's snapshot is read as it was written") {
  NodeSnapshot part = snapshot_of(2, true, {"step 1", "step 2"});
  part.action = OnHang::kRestart;
  part.moved = {4};
  part.ended = {5};
  RankSnapshot& rank = part.report.ranks[1];
  rank.ended = "exited with code 0";
  rank.paused = "announced a pause";
  rank.tool_problem = "gdb: no";
  rank.tool_output = {"a", "b"};
  rank.threads.push_back({7, "main", 'S', "read(5 -> pipe:[8])", "pipe_read", {"pipe_read"}});
  const auto read = node_snapshot_from_json(to_json(part));
  REQUIRE(read);
  REQUIRE(*read == part);

  const HangVerdict verdict{"hang", {{5}, "behind"}, true, false, 5, "rank 5 hangs"};
  REQUIRE(hang_verdict_from_json(to_json(verdict)) == verdict);
}

TEST_CASE("a part that is too large loses evidence before it loses ranks") {
  NodeSnapshot part = snapshot_of(0, true, std::vector<std::string>(200, "step 7"));
  for (RankSnapshot& rank : part.report.ranks) {
    rank.tool_output.assign(2000, std::string(100, 'x'));
    rank.threads.assign(64,
                        {1, "worker", 'S', "read()", "pipe_read", std::vector<std::string>(20, "pipe_read")});
  }
  const std::string text = to_json(part);
  REQUIRE(text.size() <= kMaxSnapshotBytes);
  const auto read = node_snapshot_from_json(text);
  REQUIRE(read);
  REQUIRE(read->report.ranks.size() == 200);
  REQUIRE(read->report.ranks[199].progress == "step 7");
  REQUIRE(read->report.ranks[199].stacks.front().functions.size() == 3);
}

TEST_CASE("what is not a part of a hang is a protocol error") {
  for (const char* text : {"", "{}", "[]", R"({"version":2})", R"({"version":1,"host":7})", "nonsense"}) {
    INFO(text);
    REQUIRE(node_snapshot_from_json(text).error().code == ErrorCode::kProtocol);
    REQUIRE(hang_verdict_from_json(text).error().code == ErrorCode::kProtocol);
  }
}

TEST_CASE("the report of a job that hung names the outlier of all nodes") {
  const auto worker = [](int rank, const char* progress) {
    WorkerOutcome out;
    out.rank = rank;
    out.pid = 100 + rank;
    out.end.signal = SIGTERM;
    out.stopped_by_us = true;
    out.progress = progress;
    return out;
  };
  JobReport report;
  report.program = "train.py";
  report.notice.rank = 0;
  report.nodes = {{0, "host-a", {worker(0, "step 141 all_reduce"), worker(1, "step 141 all_reduce")}, {}},
                  {1, "host-b", {worker(2, "step 141 all_reduce"), worker(3, "step 140 data")}, {}}};
  report.nodes[0].workers[0].hang = "rank 0 hangs";
  for (NodeReport& node : report.nodes)
    for (WorkerOutcome& outcome : node.workers) judge_worker(outcome, {});
  const Verdict verdict = judge(report.nodes, report.notice);
  REQUIRE(verdict.root == Verdict::Place{0, 0});
  REQUIRE(find_outliers(report, verdict) ==
          Outliers{{3}, "behind the others: step 140, the others step 141"});
  const std::string text = format_report(report, verdict, [](std::int64_t) { return std::string("now"); });
  INFO(text);
  REQUIRE(text.find("  outlier of all nodes: rank 3: behind the others") != std::string::npos);
  REQUIRE(text.find("cause     : hang: rank 0 hangs") != std::string::npos);
  REQUIRE(to_json(report, verdict).find("\"outlier_ranks\"") != std::string::npos);

  report.nodes[0].workers[0].hang.clear();
  report.nodes[0].workers[0].stopped_by_us = false;
  judge_worker(report.nodes[0].workers[0], {});
  REQUIRE(find_outliers(report, judge(report.nodes, report.notice)) == Outliers{});
}
