// SPDX-License-Identifier: Apache-2.0
// Who hangs and who stands out: decisions without a process and without a clock.
#include <cstring>
#include <limits>

#include "launcher/hang/hang_report.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/hang/snapshot.h"
#include "launcher/job/restart_policy.h"
#include "launcher/progress/progress_sample.h"
#include "rendezvous/base/progress_page.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
using Watch = HangRules::Watch;
using Change = HangWatch::Change;
using Ranks = std::vector<int>;

namespace {

const Instant kStart{};
constexpr Millis kSecond{1000};

Liveness tells(std::uint64_t seen) {
  return {.running = true, .reports = true, .seen = seen};
}
Liveness writes(std::uint64_t bytes) {
  return {.running = true, .seen = bytes};
}
Liveness steps(std::uint64_t moves) {
  return {.running = true, .reports = true, .warmed_up = true, .seen = moves};
}

HangRules fixed(Millis limit, Millis start) {
  return {.watch = Watch::kFixed, .limit = limit, .start = start};
}

/// Looks whenever the watch asks for it, with what `signs` says of that time, until a hang begins or is over,
/// or `until`.
template <class Signs>
std::pair<Change, Instant> run(HangWatch& watch, const Signs& signs, Instant until) {
  while (watch.next_look() && *watch.next_look() <= until) {
    const Instant now = *watch.next_look();
    const std::vector<Liveness> all = signs(now);
    if (const Change change = watch.look(all, now); change != Change::kNone) return {change, now};
  }
  return {Change::kNone, until};
}

Ranks stalled(const HangWatch& watch) {
  return watch.stalled_for(Millis::max(), kStart);
}

std::uint64_t seconds_at(Instant now) {
  return static_cast<std::uint64_t>((now - kStart) / kSecond);
}

RankSnapshot at(int rank, std::string word, std::vector<std::string> functions = {}) {
  RankSnapshot out;
  out.rank = out.local_rank = rank;
  out.pid = 100 + rank;
  out.stalled = true;
  out.progress = std::move(word);
  if (!functions.empty()) {
    out.tool = "gdb";
    out.stacks.push_back({"Thread 1", std::move(functions)});
  }
  return out;
}

}  // namespace

TEST_CASE("the timeout is a number of seconds, with its own for the start, auto or off") {
  REQUIRE(HangRules::parse("auto", "report") == HangRules{});
  REQUIRE(HangRules::parse("off", "report")->watch == Watch::kOff);
  REQUIRE(HangRules::parse("60", "report") == fixed(60 * kSecond, 600 * kSecond));
  REQUIRE(HangRules::parse("0.5:30", "report") == fixed(Millis(500), 30 * kSecond));
  REQUIRE(HangRules::parse("auto", "restart")->action == OnHang::kRestart);
  for (const char* text : {"", "0", "-1", "x", "60:", ":60", "60:0", "1e9", "nan", "60s"}) {
    INFO(text);
    const auto rules = HangRules::parse(text, "report");
    REQUIRE_FALSE(rules);
    REQUIRE(rules.error().message.starts_with("--hang-timeout="));
  }
  REQUIRE_FALSE(HangRules::parse("auto", "kill"));
  REQUIRE_FALSE(HangRules::parse("off", "stop"));
}

TEST_CASE("who tells nothing of its progress never hangs without a fixed timeout") {
  HangWatch watch(HangRules{}, 1, kStart);
  const auto silent = [](Instant) { return std::vector{writes(0)}; };
  REQUIRE(run(watch, silent, kStart + std::chrono::hours(100)).first == Change::kNone);
  REQUIRE(watch.limit(0) == std::nullopt);
}

TEST_CASE("off means that nobody is looked at") {
  HangWatch watch({.watch = Watch::kOff}, 4, kStart);
  REQUIRE(watch.next_look() == std::nullopt);
}

TEST_CASE("a worker in its steps hangs after the least limit at the soonest, and is named once") {
  HangWatch watch(HangRules{}, 2, kStart);
  // Rank 1 stops after 100 s.
  const auto signs = [](Instant now) {
    return std::vector{steps(seconds_at(now)), steps(std::min<std::uint64_t>(seconds_at(now), 100))};
  };
  const auto [seen, when] = run(watch, signs, kStart + std::chrono::hours(2));
  REQUIRE(seen == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{1});
  REQUIRE(when >= kStart + 100 * kSecond + HangWatch::kLeastLimit);
  REQUIRE(when <= kStart + 100 * kSecond + HangWatch::kLeastLimit + HangWatch::kMostBetweenLooks);
  REQUIRE(watch.idle_time(1, when) >= HangWatch::kLeastLimit);
  REQUIRE(run(watch, signs, when + std::chrono::hours(2)).first == Change::kNone);
}

TEST_CASE("first steps take as long as half an hour") {
  HangWatch watch(HangRules{}, 1, kStart);
  const auto compiling = [](Instant) { return std::vector{tells(1)}; };
  const auto [seen, when] = run(watch, compiling, kStart + std::chrono::hours(2));
  REQUIRE(seen == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{0});
  REQUIRE(when - kStart >= HangWatch::kFirstSteps);
}

TEST_CASE("the limit is three times the longest pause of any worker") {
  HangWatch watch(HangRules{}, 2, kStart);
  // Rank 0 saves a checkpoint from 200 s to 400 s; rank 1 waits for nobody. From 1000 s on both are silent.
  const auto signs = [](Instant now) {
    const std::uint64_t s = std::min<std::uint64_t>(seconds_at(now), 1000);
    return std::vector{steps(s < 200 ? s : s < 400 ? 200 : s), steps(s)};
  };
  const auto [seen, when] = run(watch, signs, kStart + std::chrono::hours(2));
  REQUIRE(seen == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{0, 1});
  REQUIRE(when - kStart >= 1000 * kSecond + 3 * 200 * kSecond);
  REQUIRE(watch.limit(1) >= 600 * kSecond);
}

TEST_CASE("one that moves again is said, and the next hang is a new one with a longer limit") {
  HangWatch watch(HangRules{}, 2, kStart);
  const auto signs = [](Instant now) {
    const std::uint64_t s = seconds_at(now);
    return std::vector{steps(s), steps(s < 100 || s > 900 ? s : 100)};
  };
  const auto [hang, first] = run(watch, signs, kStart + std::chrono::hours(1));
  REQUIRE(hang == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{1});
  const auto [over, when] = run(watch, signs, kStart + std::chrono::hours(1));
  REQUIRE(over == Change::kOver);
  REQUIRE(when - kStart >= 900 * kSecond);
  REQUIRE(*watch.limit(0) >= 3 * 800 * kSecond);
}

TEST_CASE("others that fall silent in a hang belong to it") {
  HangWatch watch(HangRules{}, 2, kStart);
  const auto signs = [](Instant now) {
    const std::uint64_t s = seconds_at(now);
    return std::vector{steps(s < 200 || s > 2000 ? s : 200), steps(s < 100 || s > 2000 ? s : 100)};
  };
  REQUIRE(run(watch, signs, kStart + std::chrono::hours(1)).first == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{1});
  REQUIRE(run(watch, signs, kStart + 1900 * kSecond).first == Change::kNone);
  REQUIRE(stalled(watch) == Ranks{0, 1});
  REQUIRE(run(watch, signs, kStart + std::chrono::hours(1)).first == Change::kOver);
}

TEST_CASE("while a worker has announced a pause nobody of its node hangs") {
  HangWatch watch(HangRules{}, 2, kStart);
  const auto signs = [](Instant) {
    Liveness saving = steps(7);
    saving.paused = true;
    return std::vector{saving, steps(8)};
  };
  REQUIRE(run(watch, signs, kStart + std::chrono::hours(10)).first == Change::kNone);
}

TEST_CASE("a fixed timeout counts for everybody, and the start has its own") {
  HangWatch watch(fixed(2 * kSecond, 20 * kSecond), 2, kStart);
  // Rank 0 says nothing at all, rank 1 writes every second until 10 s.
  const auto signs = [](Instant now) {
    return std::vector{writes(0), writes(std::min<std::uint64_t>(seconds_at(now), 10))};
  };
  const auto [seen, when] = run(watch, signs, kStart + std::chrono::hours(1));
  REQUIRE(seen == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{1});
  REQUIRE(when - kStart >= 12 * kSecond);
  REQUIRE(when - kStart <= 13 * kSecond);

  HangWatch alone(fixed(2 * kSecond, 20 * kSecond), 1, kStart);
  const auto nothing = [](Instant) { return std::vector{writes(0)}; };
  const auto [late, at_start] = run(alone, nothing, kStart + std::chrono::hours(1));
  REQUIRE(late == Change::kBegan);
  REQUIRE(stalled(alone) == Ranks{0});
  REQUIRE(at_start - kStart == 20 * kSecond);
}

TEST_CASE("a worker that has ended hangs no more, and does not move again") {
  HangWatch watch(fixed(kSecond, kSecond), 1, kStart);
  const auto silent = [](Instant) { return std::vector{writes(0)}; };
  const auto when = run(watch, silent, kStart + std::chrono::hours(1)).second;
  const auto ended = [](Instant) { return std::vector{Liveness{}}; };
  const std::vector gone = ended(when);
  REQUIRE(watch.look(gone, *watch.next_look()) == Change::kOver);
  REQUIRE(run(watch, ended, when + std::chrono::hours(1)).first == Change::kNone);
}

TEST_CASE("a look that comes late, as after a suspended host, finds nobody silent") {
  HangWatch watch(fixed(4 * kSecond, 4 * kSecond), 1, kStart);
  const std::vector signs{writes(5)};
  (void)watch.look(signs, *watch.next_look());
  const Instant after = kStart + std::chrono::hours(8);
  REQUIRE(watch.look(signs, after) == Change::kNone);
  const auto silent = [&](Instant) { return signs; };
  const auto [seen, when] = run(watch, silent, after + std::chrono::hours(1));
  REQUIRE(seen == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{0});
  REQUIRE(when - after == 4 * kSecond);
}

TEST_CASE("who is silent for half of another node's limit belongs to its hang") {
  HangWatch watch(HangRules{}, 3, kStart);
  // Rank 0 goes on, rank 1 stops at 100 s, rank 2 tells nothing.
  const auto signs = [](Instant now) {
    return std::vector{steps(seconds_at(now)), steps(std::min<std::uint64_t>(seconds_at(now), 100)),
                       writes(0)};
  };
  const Instant when = kStart + 250 * kSecond;
  REQUIRE(run(watch, signs, when).first == Change::kNone);
  REQUIRE(watch.stalled_for(240 * kSecond, when) == Ranks{1});
  REQUIRE(watch.watched(1));
  REQUIRE_FALSE(watch.watched(2));
}

TEST_CASE("after a pause that somebody asked for on another node the silence is counted anew, and longer") {
  HangWatch watch(HangRules{}, 1, kStart);
  const auto signs = [](Instant now) {
    return std::vector{steps(std::min<std::uint64_t>(seconds_at(now), 100))};
  };
  const auto [hang, when] = run(watch, signs, kStart + std::chrono::hours(1));
  REQUIRE(hang == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{0});
  watch.restart_idle_times(when);
  REQUIRE_FALSE(watch.hanging());
  const auto [again, later] = run(watch, signs, when + std::chrono::hours(1));
  REQUIRE(again == Change::kBegan);
  REQUIRE(stalled(watch) == Ranks{0});
  REQUIRE(later - when >= 3 * HangWatch::kLeastLimit);

  HangWatch off({.watch = Watch::kOff}, 1, kStart);
  off.restart_idle_times(kStart);
  REQUIRE(off.next_look() == std::nullopt);
}

TEST_CASE("looks are a quarter of the limit apart, and half a minute at most") {
  HangWatch quick(fixed(kSecond, 10 * kSecond), 1, kStart);
  REQUIRE(*quick.next_look() == kStart + Millis(250));
  HangWatch slow(fixed(std::chrono::hours(1), std::chrono::hours(1)), 1, kStart);
  REQUIRE(*slow.next_look() == kStart + HangWatch::kMostBetweenLooks);
}

TEST_CASE("the place of a worker is found in its words") {
  REQUIRE(position_in("epoch 2/10 step 140 loss 0.31") == Position{2, 140});
  REQUIRE(position_in("Epoch: [3][ 77/900]") == Position{3, 0});
  REQUIRE(position_in("step=1200") == Position{0, 1200});
  REQUIRE(position_in("Iteration: 77") == Position{0, 77});
  REQUIRE(position_in("loss 3") == std::nullopt);
  REQUIRE(position_in("step") == std::nullopt);
  REQUIRE(position_in("step 99999999999999999999999") == std::nullopt);
  REQUIRE(phase_in("epoch 2 step 140/15000 all_reduce") == "all_reduce");
  REQUIRE(phase_in("epoch 2 step 140") == "");
}

TEST_CASE("a page of the runtime is told from a line of text") {
  ProgressPage page{};
  std::memcpy(page.magic.data(), kProgressMagic.data(), page.magic.size());
  page.moves = 77;
  page.epoch = 2;
  page.step = 140;
  page.steps = 15000;
  std::memcpy(page.phase.data(), "all_reduce", 10);
  const auto read = [&] { return parse_progress({reinterpret_cast<const char*>(&page), sizeof page}); };
  REQUIRE(read() == ProgressSample{"epoch 2 step 140/15000 all_reduce", true, false, true, 77, "all_reduce"});
  page.epoch = -1;
  page.steps = 0;
  page.step = 2;
  page.paused = 1;
  REQUIRE(read() == ProgressSample{"step 2 all_reduce", true, true, false, 77, "all_reduce"});
  std::memcpy(page.text.data(), "loading\tshards", 15);
  REQUIRE(read().text == "loading shards all_reduce");
  std::memcpy(page.text.data(), "loss 0.25\0", 10);
  REQUIRE(read().figures == TrainingFigures{0.25, {}});
  page.loss = 0.5;
  page.samples_per_second = 1200;
  REQUIRE(read().figures == TrainingFigures{0.5, 1200});
  page.loss = std::numeric_limits<double>::quiet_NaN();
  REQUIRE(read().figures == TrainingFigures{0.25, {}});
  page.text_version = 1;
  REQUIRE(read().text == "step 2 all_reduce");
  REQUIRE(parse_progress("step 1200\nstep 1199\n") == ProgressSample{.text = "step 1200"});
  REQUIRE(parse_progress(std::string(kProgressMagic)).is_page == false);
  REQUIRE(parse_progress("") == ProgressSample{});
}

TEST_CASE("a rank that is behind is the outlier, before anything else") {
  const std::vector ranks{at(0, "epoch 1 step 141 all_reduce"), at(1, "epoch 1 step 140 all_reduce"),
                          at(2, "epoch 1 step 141 forward")};
  REQUIRE(find_outliers(ranks) ==
          Outliers{{1}, "behind the others (epoch 1 step 140; the others: epoch 1 step 141)"});
  const std::vector apart{at(0, "step 141"), at(1, "step 140"), at(2, "step 145")};
  REQUIRE(find_outliers(apart) == Outliers{{1}, "behind the others (step 140; the furthest: step 145)"});
  const std::vector two{at(0, "step 9"), at(1, "step 8")};
  REQUIRE(find_outliers(two).ranks == Ranks{1});
  const std::vector one_ahead{at(0, "step 8"), at(1, "step 9"), at(2, "step 8")};
  REQUIRE(find_outliers(one_ahead).ranks == Ranks{1});
}

TEST_CASE("at the same step the phase tells") {
  const std::vector ranks{at(0, "step 140 all_reduce"), at(1, "step 140 all_reduce"), at(2, "step 140 data")};
  REQUIRE(find_outliers(ranks) == Outliers{{2}, "at the same step, but in \"data\""});
  const std::vector two{at(0, "step 140 all_reduce"), at(1, "step 140 data")};
  REQUIRE(find_outliers(two).ranks == Ranks{1});
}

TEST_CASE("without words the stacks tell, and of two halves the one that is not in a collective") {
  const std::vector<std::string> waits{"read", "gloo::transport::tcp::Pair::recv", "gloo::allreduce", "main"};
  const std::vector<std::string> loads{"read", "load_batch", "main"};
  const std::vector ranks{at(0, "", waits), at(1, "", waits), at(2, "", loads), at(3, "", waits)};
  REQUIRE(find_outliers(ranks) == Outliers{{2}, "whose stack differs from the others', in read"});
  const std::vector two{at(0, "", loads), at(1, "", waits)};
  REQUIRE(find_outliers(two).ranks == Ranks{0});
  const std::vector same{at(0, "", waits), at(1, "", waits)};
  REQUIRE(find_outliers(same) == Outliers{});
  const std::vector neither{at(0, "", loads), at(1, "", {"poll", "main"})};
  REQUIRE(find_outliers(neither) == Outliers{});
}

TEST_CASE("without tools the kernel's word about the main thread tells") {
  std::vector ranks{at(0, ""), at(1, ""), at(2, "")};
  for (RankSnapshot& rank : ranks)
    rank.threads.push_back({.state = 'S', .call = "futex()", .wait = "futex_wait"});
  REQUIRE(find_outliers(ranks) == Outliers{});
  ranks[1].threads[0].call = "read(5 -> pipe:[7])";
  ranks[1].threads[0].wait = "pipe_read";
  REQUIRE(find_outliers(ranks) == Outliers{{1}, "in read, pipe_read, unlike the others"});
}

TEST_CASE("a rank that has ended, is stopped or is stalled alone is the outlier") {
  std::vector ranks{at(0, "step 3"), at(1, "step 3"), at(2, "step 3")};
  ranks[0].threads.push_back({.state = 'T'});
  REQUIRE(find_outliers(ranks) == Outliers{{0}, "stopped by a signal (SIGSTOP)"});
  ranks[0].threads.clear();
  ranks[2].ended = "exited with code 0";
  REQUIRE(find_outliers(ranks).ranks == Ranks{2});
  REQUIRE(find_outliers(ranks).why == "ended already (exited with code 0), and others may wait for it");
  ranks[2].ended.clear();
  ranks[1].stalled = ranks[2].stalled = false;
  REQUIRE(find_outliers(ranks) == Outliers{{0}, "stalled, while the others go on"});
}

TEST_CASE(
    "where some go on and nobody stands out, the report does not say that all stand at the same place") {
  HangReport report;
  report.host = "host-a";
  report.ranks = {at(0, "", {"nanosleep", "main"}), at(1, "", {"nanosleep", "main"})};
  REQUIRE(hang_head(report)[1] == "no outlier: all ranks of this node are at the same place");
  report.ranks.push_back(at(2, "", {"read", "main"}));
  report.ranks.push_back(at(3, "", {"read", "main"}));
  REQUIRE(hang_head(report)[1] == "no outlier: all ranks of this node are at 2 places");
  report.ranks.resize(2);
  report.ranks[0].stalled = false;
  report.ranks[0].watched = true;
  report.outliers = find_outliers(report.ranks);
  REQUIRE(hang_head(report)[1] == "no outlier: the ranks differ only in whether they make progress");
}

TEST_CASE("the report groups those at the same place, and names the outlier first") {
  HangReport report;
  report.host = "host-a";
  report.idle_time = 252 * kSecond;
  report.limit = 240 * kSecond;
  report.ranks = {at(0, "step 140 all_reduce", {"read", "all_reduce", "main", "_start"}),
                  at(1, "step 139 data", {"read", "load", "main"}),
                  at(2, "step 140 all_reduce", {"read", "all_reduce", "main"})};
  report.ranks[1].idle_time = 252 * kSecond;
  report.outliers = find_outliers(report.ranks);
  REQUIRE(hang_text(report, "nothing is done") ==
          "muster: hang on host-a: ranks 0-2 made no progress for 252 s (limit 240 s); nothing is done\n"
          "  outlier: rank 1, behind the others (step 139; the others: step 140)\n"
          "  rank 1: \"step 139 data\"\n"
          "    gdb: read <- load <- main\n"
          "  ranks 0,2: \"step 140 all_reduce\"\n"
          "    gdb: read <- all_reduce <- main\n");
  REQUIRE(suspect(report).rank == 1);
  REQUIRE(hang_line(report, suspect(report)) ==
          "rank 1 (local_rank 1, pid 101) hangs: no progress for 252 s after \"step 139 data\" (read <- load "
          "<- main); outlier: rank 1, behind the others (step 139; the others: step 140)");
}
