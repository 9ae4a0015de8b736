// SPDX-License-Identifier: Apache-2.0
// A hang over several nodes: who is asked, when there is a report, and what it says of all ranks.
#include "launcher/hang/hang_session.h"

#include <algorithm>
#include <limits>

#include "launcher/hang/hang_report.h"
#include "launcher/hang/snapshot.h"
#include "launcher/text/node_message.h"
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

TEST_CASE("a node whose snapshot cannot be read is not waited for, and is named as one that did not answer") {
  HangSession session(2);
  (void)session.reported(0, kStart);
  REQUIRE(session.snapshot(1, 1, std::nullopt, kStart) == Actions{});
  REQUIRE(session.snapshot(0, 1, snapshot_of(0, true, {"a"}), kStart) == Actions{.publish = true});
  REQUIRE(hang_head(merged(session.snapshots(), 2)).back() ==
          "no answer from node 1: the state of its ranks is not known");
}

TEST_CASE("a hang is over when it is on all nodes, and the next one has another number") {
  HangSession session(2);
  (void)session.reported(0, kStart);
  (void)session.snapshot(0, 1, snapshot_of(0, true, {"a"}), kStart);
  (void)session.snapshot(1, 1, snapshot_of(1, true, {"a"}), kStart);
  REQUIRE(session.over(1) == Actions{});
  REQUIRE(session.over(1) == Actions{});
  REQUIRE(session.over(0) == Actions{.over = true});
  REQUIRE(session.reported(1, kStart) == Actions{.ask = true});
  REQUIRE(session.number() == 2);
  REQUIRE(session.snapshot(0, 1, snapshot_of(0, true, {"a"}), kStart) == Actions{});  // of the last one
  REQUIRE(session.snapshots().empty());
}

TEST_CASE("a hang that ended while stacks were read is over with its report") {
  HangSession session(2);
  (void)session.reported(1, kStart);
  REQUIRE(session.over(1) == Actions{});  // before its snapshot came
  (void)session.snapshot(1, 1, snapshot_of(1, false, {"a"}), kStart);
  REQUIRE(session.snapshot(0, 1, snapshot_of(0, false, {"a"}), kStart) ==
          Actions{.publish = true, .over = true});
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
          "  outlier: rank 5 on n2, at the same step, but in \"data\"\n"
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
  REQUIRE(report.outliers == Outliers{{5}, "whose stack differs from the others', in read"});
}

TEST_CASE("a node's snapshot is read as it was written") {
  NodeSnapshot part = snapshot_of(2, true, {"step 1", "step 2"});
  part.action = OnHang::kRestart;
  RankSnapshot& rank = part.report.ranks[1];
  rank.ended = "exited with code 0";
  rank.paused = "announced a pause";
  rank.tool_problem = "gdb: no";
  rank.threads.push_back({7, "main", 'S', "read(5 -> pipe:[8])", "pipe_read"});
  rank.collectives = {{"default", "shm", 2, PageOperation::kBroadcast, PageState::kBegun, 17, 8, 2}};
  REQUIRE(from_node_message<NodeSnapshot>(to_message(part), "") == part);

  const HangVerdict verdict{"hang", {{5}, "behind"}, true, false, 5, "rank 5 hangs"};
  REQUIRE(from_node_message<HangVerdict>(to_node_message(verdict), "") == verdict);
}

TEST_CASE("a part that is too large loses evidence before it loses ranks") {
  NodeSnapshot part = snapshot_of(0, true, std::vector<std::string>(200, "step 7"));
  for (RankSnapshot& rank : part.report.ranks) {
    rank.threads.assign(64, {1, "worker", 'S', std::string(100, 'x'), "pipe_read"});
  }
  const std::string message = to_message(part);
  REQUIRE(message.size() <= kMaxNodeMessageBytes);
  const auto read = from_node_message<NodeSnapshot>(message, "");
  REQUIRE(read);
  REQUIRE(read->report.ranks.size() == 200);
  REQUIRE(read->report.ranks[199].progress == "step 7");
  REQUIRE(read->report.ranks[199].stacks.front().functions.size() == 3);
}

TEST_CASE("a list that is too long is cut where it is sent, so that the rest of the message is read") {
  NodeSnapshot part = snapshot_of(0, true, {"step 7"});
  part.report.ranks[0].stacks[0].functions.assign(TextCleaner::kMaxList + 1, "x");
  const auto read = from_node_message<NodeSnapshot>(to_message(part), "");
  REQUIRE(read);
  REQUIRE(read->report.ranks[0].stacks[0].functions.size() == TextCleaner::kMaxList);

  HangVerdict verdict{"hang\nof rank 5", {{}, "behind"}, true, false, 5, "rank 5 hangs"};
  verdict.outliers.ranks.assign(TextCleaner::kMaxList + 1, 3);
  const auto told = from_node_message<HangVerdict>(to_node_message(verdict), "");
  REQUIRE(told);
  REQUIRE(told->text == "hang of rank 5");
}

TEST_CASE("of a part of which not even the ranks fit their number is told") {
  const NodeSnapshot part = snapshot_of(0, true, std::vector<std::string>(1024, std::string(1000, 'x')));
  const auto read = from_node_message<NodeSnapshot>(to_message(part), "");
  REQUIRE(read);
  REQUIRE(read->hanging);
  REQUIRE(read->report.ranks.empty());
  REQUIRE(merged({{0, *read}}, 1).left_out == 1024);
}

TEST_CASE("numbers of another node that cannot be true overflow nothing") {
  NodeSnapshot part = snapshot_of(0, true, {"step 7", "step 7"});
  part.report.idle_time = Millis::max();
  part.report.left_out = std::numeric_limits<int>::max();
  for (RankSnapshot& rank : part.report.ranks) rank.rank = std::numeric_limits<int>::max() - rank.rank;
  const HangReport report = merged({{0, part}, {1, part}}, 2);
  REQUIRE(report.idle_time < std::chrono::hours(24 * 366));
  REQUIRE(SteadyClock::now() - report.idle_time < SteadyClock::now());
  REQUIRE(report.left_out == 0);
  REQUIRE_FALSE(hang_text(report, "the job goes on").empty());
}

TEST_CASE("what is no message of a node is a protocol error") {
  const std::string good = to_message(snapshot_of(2, true, {"step 1"}));
  for (std::size_t size = 0; size < good.size(); ++size)
    REQUIRE(from_node_message<NodeSnapshot>(good.substr(0, size), "").error().code == ErrorCode::kProtocol);
  REQUIRE_FALSE(from_node_message<NodeSnapshot>(good + "x", ""));
  REQUIRE_FALSE(from_node_message<NodeSnapshot>('\1' + good.substr(1), ""));
  REQUIRE(from_node_message<HangVerdict>("nonsense", "the verdict").error().message ==
          "the verdict cannot be read: it is of another version");
}

TEST_CASE("a text of another node is shown without control bytes, and only what has lines keeps them") {
  HangVerdict verdict;
  verdict.text = "a\x1b[31mb\nc\td";
  verdict.line.assign(100'000, 'x');
  std::string bytes(1, kNodeMessageVersion);
  ArchiveWriter{bytes}(verdict);
  const auto read = from_node_message<HangVerdict>(bytes, "");
  REQUIRE(read->text == "ab c d");
  REQUIRE(read->line.size() == TextCleaner::kMaxTextBytes);

  WorkerOutcome outcome;
  outcome.error_message = outcome.progress = verdict.text;
  bytes = kNodeMessageVersion;
  ArchiveWriter{bytes}(outcome);
  const auto told = from_node_message<WorkerOutcome>(bytes, "");
  REQUIRE(told->error_message == "ab\nc d");
  REQUIRE(told->progress == "ab c d");
}
