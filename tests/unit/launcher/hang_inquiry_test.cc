// SPDX-License-Identifier: Apache-2.0
// A hang over several nodes: who is asked, when there is a report, and what it says of all ranks.
#include "launcher/hang/hang_inquiry.h"

#include <csignal>

#include "launcher/hang/hang_part.h"
#include "launcher/hang/hang_report.h"
#include "launcher/join/node_news.h"
#include "launcher/report/job_report.h"
#include "launcher/report/report.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
using Orders = HangInquiry::Orders;
using Ranks = std::vector<int>;

namespace {

const Instant kStart{};
constexpr Millis kSecond{1000};

HangPart part_of(int node, bool hanging, const std::vector<std::string>& words,
                 const char* function = "all_reduce") {
  HangPart out;
  out.hanging = hanging;
  out.report.host = "n" + std::to_string(node);
  out.report.wall_time_s = 1700000000 + node;
  out.report.limit = 240 * kSecond;
  for (const std::string& word : words) {
    RankEvidence& rank = out.report.ranks.emplace_back();
    rank.local_rank = static_cast<int>(out.report.ranks.size()) - 1;
    rank.rank = node * static_cast<int>(words.size()) + rank.local_rank;
    rank.pid = 100 + rank.rank;
    rank.silent = hanging;
    if (hanging) rank.silence = (250 + node) * kSecond;
    rank.word = word;
    rank.tool = "gdb";
    rank.stacks.push_back({"Thread 1", {"read", function, "main"}});
    out.report.silence = std::max(out.report.silence, rank.silence);
  }
  return out;
}

/// Seven ranks in the all-reduce of step 42, rank 5 on n2 still in its data.
std::map<int, HangPart> seven_and_one() {
  std::map<int, HangPart> out;
  for (int node = 0; node < 4; ++node)
    out[node] = part_of(node, true, {"epoch 1 step 42/99 all_reduce", "epoch 1 step 42/99 all_reduce"});
  out[2].report.ranks[1] = part_of(2, true, {"", "epoch 1 step 42/99 data"}, "next_batch").report.ranks[1];
  return out;
}

}  // namespace

TEST_CASE("one node's word makes all be asked, and the last answer makes the report") {
  HangInquiry inquiry(3);
  REQUIRE(inquiry.seen(1, 0, kStart) == Orders{.ask = true});
  REQUIRE(inquiry.number() == 1);
  REQUIRE(inquiry.seen(2, 0, kStart) == Orders{});  // it has been asked
  REQUIRE(inquiry.part(1, 1, part_of(1, true, {"a"}), kStart) == Orders{});
  REQUIRE(inquiry.part(0, 1, part_of(0, false, {"a"}), kStart) == Orders{});
  REQUIRE(inquiry.part(2, 1, part_of(2, true, {"a"}), kStart) == Orders{.publish = true});
  REQUIRE(inquiry.parts().size() == 3);
  REQUIRE(inquiry.hanging());
  // Whoever falls silent for the same hang gets no report of its own.
  REQUIRE(inquiry.seen(0, 0, kStart + kSecond) == Orders{.known = true});
}

TEST_CASE("who does not answer in time is not waited for") {
  HangInquiry inquiry(3);
  (void)inquiry.seen(0, 0, kStart);
  (void)inquiry.part(0, 1, part_of(0, true, {"a"}), kStart);
  REQUIRE(inquiry.tick(kStart + kSecond) == Orders{});
  REQUIRE(inquiry.tick(*inquiry.deadline()) == Orders{.publish = true});
  REQUIRE(inquiry.parts().size() == 1);
  REQUIRE(inquiry.part(1, 1, part_of(1, true, {"a"}), kStart) == Orders{});  // too late
  REQUIRE(inquiry.parts().size() == 1);
}

TEST_CASE("a hang is over when it is on all nodes, and the next one has another number") {
  HangInquiry inquiry(2);
  (void)inquiry.seen(0, 0, kStart);
  (void)inquiry.part(0, 1, part_of(0, true, {"a"}), kStart);
  (void)inquiry.part(1, 1, part_of(1, true, {"a"}), kStart);
  REQUIRE(inquiry.over(1, {1}, {}, kStart) == Orders{});
  REQUIRE(inquiry.over(1, {1}, {}, kStart) == Orders{});
  REQUIRE(inquiry.over(0, {}, {0}, kStart) == Orders{.over = true});
  REQUIRE(inquiry.moved() == Ranks{1});
  REQUIRE(inquiry.ended() == Ranks{0});
  REQUIRE(inquiry.seen(1, 0, kStart) == Orders{.ask = true});
  REQUIRE(inquiry.number() == 2);
  REQUIRE(inquiry.part(0, 1, part_of(0, true, {"a"}), kStart) == Orders{});  // of the last one
  REQUIRE(inquiry.parts().empty());
}

TEST_CASE("a hang that ended while stacks were read is over with its report") {
  HangInquiry inquiry(2);
  (void)inquiry.seen(1, 0, kStart);
  HangPart gone = part_of(1, false, {"a"});
  gone.moved = {1};
  REQUIRE(inquiry.over(1, {1}, {}, kStart) == Orders{});  // before its part came
  (void)inquiry.part(1, 1, gone, kStart);
  REQUIRE(inquiry.part(0, 1, part_of(0, false, {"a"}), kStart) == Orders{.publish = true, .over = true});
  REQUIRE(inquiry.moved() == Ranks{1});
  REQUIRE_FALSE(inquiry.hanging());
}

TEST_CASE("a node whose word about the end was lost begins a new hang") {
  HangInquiry inquiry(2);
  (void)inquiry.seen(1, 0, kStart);
  (void)inquiry.part(0, 1, part_of(0, false, {"a"}), kStart);
  (void)inquiry.part(1, 1, part_of(1, true, {"a"}), kStart);
  REQUIRE(inquiry.seen(1, 0, kStart) == Orders{.ask = true});
  inquiry.forget();
  REQUIRE(inquiry.deadline() == std::nullopt);
  REQUIRE(inquiry.seen(1, 0, kStart) == Orders{.ask = true});
  REQUIRE(inquiry.number() == 3);
}

TEST_CASE("after the word that a hang is over was lost, hangs of other nodes are reported again") {
  HangInquiry inquiry(3);
  (void)inquiry.seen(1, 0, kStart);
  for (const int node : {0, 1, 2}) (void)inquiry.part(node, 1, part_of(node, node == 1, {"a"}), kStart);
  REQUIRE(inquiry.hanging());
  SECTION("once node 1 has not said for long that it hangs") {
    REQUIRE(inquiry.deadline() == kStart + HangInquiry::kForget);
    REQUIRE(inquiry.tick(*inquiry.deadline() - kSecond) == Orders{});
    REQUIRE(inquiry.tick(*inquiry.deadline()) == Orders{.faded = true});
    REQUIRE(inquiry.deadline() == std::nullopt);
    REQUIRE(inquiry.seen(2, 0, kStart + HangInquiry::kForget) == Orders{.ask = true});
    REQUIRE(inquiry.number() == 2);
  }
  SECTION("also where it began before that, and goes on") {
    Instant now = kStart + kSecond;
    REQUIRE(inquiry.seen(2, 0, now) == Orders{.known = true});
    Orders orders;
    int told = 0;
    while (orders == Orders{} && told < 20) {
      now += HangInquiry::kRenewal;
      ++told;
      REQUIRE(inquiry.seen(2, 1, now) == Orders{});
      if (inquiry.deadline() <= now) orders = inquiry.tick(now);
    }
    REQUIRE(orders == Orders{.ask = true});
    REQUIRE(now <= kStart + HangInquiry::kForget + HangInquiry::kLonger + 3 * HangInquiry::kRenewal);
    REQUIRE(inquiry.number() == 2);
    (void)inquiry.part(2, 2, part_of(2, true, {"a"}), now);
    (void)inquiry.part(0, 2, part_of(0, false, {"a"}), now);
    REQUIRE(inquiry.part(1, 2, part_of(1, false, {"a"}), now) == Orders{.publish = true});
    REQUIRE(inquiry.over(2, {2}, {}, now) == Orders{.over = true});
  }
}

TEST_CASE("a hang that goes on for hours is told once, by however many nodes it is seen") {
  HangInquiry inquiry(3);
  Instant now = kStart;
  (void)inquiry.seen(1, 0, now);
  for (const int node : {0, 1, 2}) (void)inquiry.part(node, 1, part_of(node, node == 1, {"a"}), now);
  REQUIRE(inquiry.seen(0, 0, now) == Orders{.known = true});
  REQUIRE(inquiry.seen(2, 0, now) == Orders{.known = true});
  for (int i = 0; i < 200; ++i) {
    now += HangInquiry::kRenewal;
    for (const int node : {1, 2}) REQUIRE(inquiry.seen(node, 1, now) == Orders{});
    REQUIRE(inquiry.tick(now) == Orders{});
  }
  REQUIRE(inquiry.over(1, {1}, {}, now) == Orders{});
  REQUIRE(inquiry.over(2, {2}, {}, now + kSecond) == Orders{});
  REQUIRE(inquiry.over(0, {0}, {}, now + 2 * kSecond) == Orders{.over = true});
  REQUIRE(inquiry.deadline() == std::nullopt);
}

TEST_CASE("a node that comes back and hangs yet belongs to the hang that was told") {
  HangInquiry inquiry(2);
  (void)inquiry.seen(1, 0, kStart);
  (void)inquiry.part(0, 1, part_of(0, false, {"a"}), kStart);
  (void)inquiry.part(1, 1, part_of(1, true, {"a"}), kStart);
  REQUIRE(inquiry.tick(kStart + HangInquiry::kForget) == Orders{.faded = true});
  const Instant back = kStart + HangInquiry::kForget + kSecond;
  REQUIRE(inquiry.seen(1, 1, back) == Orders{});
  REQUIRE(inquiry.seen(0, 0, back) == Orders{.known = true});
  REQUIRE(inquiry.over(0, {0}, {}, back) == Orders{});
  REQUIRE(inquiry.over(1, {1}, {}, back) == Orders{.over = true});
}

TEST_CASE("a node that does not exist has no part") {
  HangInquiry inquiry(1);
  (void)inquiry.seen(0, 0, kStart);
  REQUIRE(inquiry.part(7, 1, part_of(7, true, {"a"}), kStart) == Orders{});
  REQUIRE(inquiry.part(-1, 1, part_of(7, true, {"a"}), kStart) == Orders{});
}

TEST_CASE("of the ranks of all nodes the one that the others wait for is named with its host") {
  const HangReport report = merged(seven_and_one(), 4);
  REQUIRE(report.odd == Odd{{5}, "at the same step, but in \"data\""});
  REQUIRE(culprit(report).rank == 5);
  REQUIRE(culprit(report).node == 2);
  REQUIRE(hang_text(report, "nothing is done") ==
          "muster: hang on n0, n1, n2, n3: no sign of life of ranks 0-7 for 253 s (limit 240 s); nothing is "
          "done\n"
          "  odd one out: rank 5 on n2: at the same step, but in \"data\"\n"
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
  REQUIRE(head[2] == "no answer from nodes 1,3: what their ranks do is not known");
  REQUIRE(hang_head(merged(parts, 3))[2] == "no answer from node 1: what its ranks do is not known");
}

TEST_CASE("a rank that asks for patience on another node is named") {
  auto parts = seven_and_one();
  REQUIRE(patience_text(merged(parts, 4)).empty());
  parts[2].report.ranks[1].patience = "has asked for patience";
  REQUIRE(patience_text(merged(parts, 4)) == "rank 5 has asked for patience");
}

TEST_CASE("ranks that give no signs of life are not said to go on") {
  auto parts = seven_and_one();
  for (auto& [node, part] : parts)
    for (RankEvidence& rank : part.report.ranks) {
      rank.word.clear();
      rank.silent = rank.judged = rank.rank == 0;
    }
  const HangReport report = merged(parts, 4);
  REQUIRE(report.odd == Odd{{5}, "its stack differs from the others': it is in read"});
}

TEST_CASE("the end of a hang names who goes on and who has ended") {
  REQUIRE(over_text(12 * kSecond, {1, 2, 3}, {}) == "the hang is over after 12.0 s: ranks 1-3 move again");
  REQUIRE(over_text(12 * kSecond, {1}, {4}) ==
          "the hang is over after 12.0 s: rank 1 moves again, rank 4 has ended");
  REQUIRE(over_text(12 * kSecond, {}, {4}) == "the hang is over after 12.0 s: rank 4 has ended");
}

TEST_CASE("a node's part is read as it was written") {
  HangPart part = part_of(2, true, {"step 1", "step 2"});
  part.action = OnHang::kRestart;
  part.moved = {4};
  part.ended = {5};
  RankEvidence& rank = part.report.ranks[1];
  rank.ended = "exited with code 0";
  rank.patience = "has asked for patience";
  rank.tool_problem = "gdb: no";
  rank.tool_output = {"a", "b"};
  rank.threads.push_back({7, "main", 'S', "read(5 -> pipe:[8])", "pipe_read", {"pipe_read"}});
  const auto read = hang_part_from_json(to_json(part));
  REQUIRE(read);
  REQUIRE(*read == part);

  const HangVerdict verdict{"hang", {{5}, "behind"}, true, false, 5, "rank 5 hangs"};
  REQUIRE(hang_verdict_from_json(to_json(verdict)) == verdict);
}

TEST_CASE("a part that is too large loses evidence before it loses ranks") {
  HangPart part = part_of(0, true, std::vector<std::string>(200, "step 7"));
  for (RankEvidence& rank : part.report.ranks) {
    rank.tool_output.assign(2000, std::string(100, 'x'));
    rank.threads.assign(64,
                        {1, "worker", 'S', "read()", "pipe_read", std::vector<std::string>(20, "pipe_read")});
  }
  const std::string text = to_json(part);
  REQUIRE(text.size() <= kMaxHangPartBytes);
  const auto read = hang_part_from_json(text);
  REQUIRE(read);
  REQUIRE(read->report.ranks.size() == 200);
  REQUIRE(read->report.ranks[199].word == "step 7");
  REQUIRE(read->report.ranks[199].stacks.front().functions.size() == 3);
}

TEST_CASE("what is not a part of a hang is a protocol error") {
  for (const char* text : {"", "{}", "[]", R"({"version":2})", R"({"version":1,"host":7})", "nonsense"}) {
    INFO(text);
    REQUIRE(hang_part_from_json(text).error().code == ErrorCode::kProtocol);
    REQUIRE(hang_verdict_from_json(text).error().code == ErrorCode::kProtocol);
  }
}

TEST_CASE("a word in the store is read as it was written, and an outcome is none") {
  control::Hang word{3, control::Hang::Kind::kPart, 2, "n1", 1, std::string("\0\xff{}", 4)};
  REQUIRE(hang_from_entry(to_entry(word)) == word);
  REQUIRE(hang_from_entry("{\"succeeded\":true}") == std::nullopt);
  REQUIRE(hang_from_entry("~") == std::nullopt);
  REQUIRE(hang_from_entry(to_entry(word).substr(0, 20)) == std::nullopt);
}

TEST_CASE("the report of a job that hung names the odd one out of all nodes") {
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
  REQUIRE(odd_one_out(report, verdict) == Odd{{3}, "behind the others: step 140, the others step 141"});
  const std::string text = format_report(report, verdict, [](std::int64_t) { return std::string("now"); });
  INFO(text);
  REQUIRE(text.find("  odd one out of all nodes: rank 3: behind the others") != std::string::npos);
  REQUIRE(text.find("cause     : hang: rank 0 hangs") != std::string::npos);
  REQUIRE(to_json(report, verdict).find("\"odd_ranks\"") != std::string::npos);

  report.nodes[0].workers[0].hang.clear();
  report.nodes[0].workers[0].stopped_by_us = false;
  judge_worker(report.nodes[0].workers[0], {});
  REQUIRE(odd_one_out(report, judge(report.nodes, report.notice)) == Odd{});
}
