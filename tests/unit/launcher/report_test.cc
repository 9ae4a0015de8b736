// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <time.h>

#include <climits>

#include "launcher/report/job_report.h"
#include "rendezvous/base/text.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster::launcher;

namespace {

constexpr std::int64_t kTime = 1'795'241'100;  // 2026-11-21 06:05:00 UTC

WorkerOutcome failed(int rank, int pid, ProcessEnd end, std::int64_t time_s) {
  WorkerOutcome out;
  out.local_rank = rank - 2;
  out.rank = rank;
  out.pid = pid;
  out.end = end;
  out.wall_time_s = kTime + time_s;
  return out;
}

WorkerOutcome stopped(int rank) {
  WorkerOutcome out = failed(rank, 1000 + rank, {.signal = 15}, 9);
  out.stopped_by_us = true;
  return out;
}

JobReport report_of(std::vector<WorkerOutcome> outcomes) {
  JobReport out;
  out.program = "train.py";
  out.notice.rank = outcomes.front().rank;
  out.notice.text = "node 2 is lost";
  for (WorkerOutcome& outcome : outcomes) outcome.cause = cause_of(outcome);
  out.nodes.push_back({0, "node1.example", std::move(outcomes), {}});
  return out;
}

std::string text_of(const JobReport& report) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  return format_report(report, judge(report.nodes, report.notice));
}

}  // namespace

TEST_CASE("the report has torchrun's layout, the cause and the last lines of stderr") {
  std::vector<WorkerOutcome> outcomes{failed(2, 10815, {.code = 3}, 1),
                                      failed(3, 10816, {.signal = 11, .core = true}, 2), stopped(4),
                                      stopped(5)};
  outcomes[0].stderr_tail = {"one", "two"};
  outcomes[0].device = "GPU 3 (GPU-5a)";
  outcomes[0].progress = "step 12";
  REQUIRE(text_of(report_of(outcomes)) ==
          R"(============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_06:05:02
  host      : node1.example
  rank      : 3 (local_rank: 1)
  exitcode  : -11 (pid: 10816) (SIGSEGV) (core dumped)
  cause     : crash: SIGSEGV (core dumped)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 10816
  terminated by muster after the failure: ranks 4-5
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_06:05:01
  host      : node1.example
  rank      : 2 (local_rank: 0)
  exitcode  : 3 (pid: 10815) 
  cause     : exit code 3
  device    : GPU 3 (GPU-5a)
  progress  : step 12
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
  stderr    : last 2 lines
    one
    two
============================================================
)");
}

TEST_CASE("nothing is said where no worker failed by itself") {
  REQUIRE(text_of(report_of({stopped(2)})).empty());
}

TEST_CASE("consequences are one line, and what is not known of is named") {
  std::vector<WorkerOutcome> outcomes{failed(2, 1, {.code = 1}, 1), failed(3, 2, {.code = 1}, 1)};
  JobReport report = report_of(outcomes);
  report.nodes[0].workers[1].cause = {CauseClass::kPeerGone, "Connection reset by peer"};
  report.missing = {1, 2};
  report.nodes[0].kernel = {"NVRM: Xid (PCI:0000:3b:00): 79"};
  const std::string text = text_of(report);
  REQUIRE_THAT(text, Catch::Contains("  failed as a consequence: rank 3\n"));
  REQUIRE_THAT(text, Catch::Contains("  no report from: nodes 1-2\n"));
  REQUIRE_THAT(text, Catch::Contains("  kernel of node1.example: NVRM: Xid (PCI:0000:3b:00): 79\n"));
  REQUIRE(text.find("rank      : 3") == std::string::npos);
}

TEST_CASE("where a node was lost, it is the root cause") {
  JobReport report = report_of({failed(2, 1, {.code = 1}, 1)});
  report.nodes[0].workers[0].cause = {CauseClass::kPeerGone, "Connection reset by peer"};
  report.notice.rank = -1;
  REQUIRE_THAT(text_of(report), Catch::Contains("Root Cause (first observed failure):\n  node 2 is lost\n"));
}

TEST_CASE("a recorded error shows its call stack, indented") {
  WorkerOutcome outcome = failed(2, 1, {.code = 1}, 1);
  outcome.error_file = "/e.json";
  outcome.error_message = "ValueError: boom";
  outcome.error_callstack = "Traceback:\nline";
  const std::string text = text_of(report_of({outcome}));
  REQUIRE_THAT(text, Catch::Contains("  error_file: /e.json\n  traceback : Traceback:\n  line\n"));
  REQUIRE_THAT(text, Catch::Contains("  cause     : uncaught exception: ValueError: boom\n"));
  REQUIRE_THAT(text, Catch::Contains("  <NO_OTHER_FAILURES>\n"));
}

TEST_CASE("the one line says who, where, how and why") {
  WorkerOutcome outcome = failed(3, 77, {.code = 7}, 1);
  REQUIRE(outcome_line(outcome, "h") == "rank 3 (local_rank 1, pid 77) on h exited with code 7");
  outcome.cause = {CauseClass::kException, "ValueError: boom", "a.py:3"};
  REQUIRE(outcome_line(outcome, "h") ==
          "rank 3 (local_rank 1, pid 77) on h exited with code 7 (ValueError: boom at a.py:3)");
  REQUIRE(outcome_line(failed(3, 77, {.signal = 6, .core = true}, 1), "h") ==
          "rank 3 (local_rank 1, pid 77) on h was killed by SIGABRT (core dumped)");
}

TEST_CASE("runs of numbers are shown as ranges") {
  REQUIRE(muster::to_ranges(std::vector{0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
  REQUIRE(muster::to_ranges(std::vector<int>{}).empty());
  REQUIRE(muster::to_ranges(std::vector{INT_MIN, INT_MAX - 1, INT_MAX}) ==
          "-2147483648,2147483646-2147483647");
}

TEST_CASE("error files of @record are understood in both forms, and others are shown as they are") {
  const auto full = parse_error_file(
      R"({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Trace", "timestamp": "1795240837"}}})");
  REQUIRE(full == RecordedError{"ValueError: boom", "Trace", 1795240837});
  REQUIRE(parse_error_file(R"({"message": "boom", "timestamp": 12})") == RecordedError{"boom", "", 12});
  REQUIRE(parse_error_file("not json") == RecordedError{"not json", "", {}});
  REQUIRE(
      parse_error_file(R"({"message": {"message": "m", "extraInfo": {"timestamp": "soon"}}})").timestamp_s ==
      std::nullopt);
}

TEST_CASE("a nested launcher hands the error on with its code") {
  REQUIRE(with_error_code(R"({"message":{"message":"m"}})", 3) ==
          R"({"message":{"errorCode":3,"message":"m"}})");
  REQUIRE(with_error_code(R"({"message":"m"})", 3) == R"({"message":"m"})");
  REQUIRE(with_error_code("not json", 3) == "not json");
}
