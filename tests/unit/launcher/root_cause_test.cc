// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "launcher/report/job_report.h"
#include "launcher/text/node_message.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster::launcher;

namespace {

WorkerOutcome ended(int rank, ProcessEnd end, CauseClass kind = CauseClass::kExitCode) {
  WorkerOutcome out;
  out.local_rank = rank % 2;
  out.rank = rank;
  out.pid = 100 + rank;
  out.end = end;
  out.wall_time_s = 5;
  out.cause.kind = kind;
  return out;
}

WorkerOutcome stopped(int rank) {
  WorkerOutcome out = ended(rank, {.signal = 15}, CauseClass::kStopped);
  out.stopped_by_us = true;
  return out;
}

NodeReport node(int number, std::vector<WorkerOutcome> workers) {
  return {number, "host" + std::to_string(number), std::move(workers), {}};
}

FailureNotice of_rank(int rank) {
  FailureNotice out;
  out.rank = rank;
  return out;
}

Cause judged(WorkerOutcome outcome, const std::optional<Cause>& written = {}, bool memory_killed = false) {
  outcome.cause = {};
  return cause_of(outcome, written, memory_killed);
}

const ProcessEnd kOne{.code = 1};
const Cause kBoom{CauseClass::kException, "ValueError: boom", "a.py:1"};

}  // namespace

TEST_CASE("a worker's cause is what it wrote, else what its end says") {
  REQUIRE(judged(ended(0, kOne), kBoom) == kBoom);
  REQUIRE(judged(ended(0, kOne)) == Cause{CauseClass::kExitCode, "exit code 1"});
  REQUIRE(judged(ended(0, {.code = 139})) ==
          Cause{CauseClass::kExitCode, "exit code 139: perhaps 128 + SIGSEGV of a child process"});
  REQUIRE(judged(ended(0, {.signal = 11, .core = true})) ==
          Cause{CauseClass::kCrash, "SIGSEGV (core dumped)"});
  REQUIRE(judged(ended(0, {.signal = 6}), kBoom) == kBoom);
  REQUIRE(judged(ended(0, {})) == Cause{});
  REQUIRE(judged(stopped(0), kBoom) == Cause{CauseClass::kStopped});
}

TEST_CASE("a signal from outside is no error of the program's, whatever that wrote before") {
  REQUIRE(judged(ended(0, {.signal = 15}), kBoom) == Cause{CauseClass::kSignal, "SIGTERM"});
  REQUIRE(judged(ended(0, {.signal = 9})) == Cause{CauseClass::kSignal, "SIGKILL, sender unknown"});
  REQUIRE(judged(ended(0, {.signal = 13})) ==
          Cause{CauseClass::kSignal, "SIGPIPE; the reader of its output is gone"});
}

TEST_CASE("SIGKILL while the kernel was killing for memory is the kernel's") {
  REQUIRE(judged(ended(0, {.signal = 9}), {}, true).kind == CauseClass::kHostMemory);
  REQUIRE(judged(ended(0, {.signal = 15}), {}, true).kind == CauseClass::kSignal);
}

TEST_CASE("a loader of data that the kernel killed for memory is what its worker failed of") {
  const Cause written{CauseClass::kException,
                      "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."};
  REQUIRE(judged(ended(0, kOne), written, true).kind == CauseClass::kHostMemory);
  REQUIRE(judged(ended(0, kOne), written).kind == CauseClass::kException);
}

TEST_CASE("an error file stands in for what was not written to stderr") {
  WorkerOutcome outcome = ended(0, kOne);
  outcome.error_message = "RuntimeError: CUDA error: unspecified launch failure\nmore";
  REQUIRE(judged(outcome) ==
          Cause{CauseClass::kGpuFault, "RuntimeError: CUDA error: unspecified launch failure"});
}

TEST_CASE("the driver's word makes it the GPU's fault") {
  WorkerOutcome outcome = ended(0, kOne);
  outcome.kernel = {"NVRM: Xid (PCI:0000:01:00): 79, pid=100"};
  REQUIRE(judged(outcome) == Cause{CauseClass::kGpuFault, "NVRM: Xid (PCI:0000:01:00): 79, pid=100"});
  REQUIRE(judged(outcome, kBoom) == Cause{CauseClass::kGpuFault, "ValueError: boom", "a.py:1"});
}

TEST_CASE("the root cause is the failure that was told first, and the others failed too") {
  const std::vector nodes{node(0, {ended(1, kOne), stopped(0)}), node(1, {ended(2, kOne), ended(3, {})})};
  const Verdict verdict = judge(nodes, of_rank(2));
  REQUIRE(verdict.root == Verdict::Place{1, 0});
  REQUIRE(verdict.parts ==
          std::vector<std::vector<Part>>{{Part::kFailed, Part::kStopped}, {Part::kRoot, Part::kSucceeded}});
}

TEST_CASE("who only lost the connection to another is a consequence, even if it was told first") {
  const std::vector nodes{
      node(0, {ended(0, kOne, CauseClass::kPeerGone), ended(1, kOne, CauseClass::kNetwork)}),
      node(1, {ended(2, {.signal = 11}, CauseClass::kCrash)})};
  const Verdict verdict = judge(nodes, of_rank(0));
  REQUIRE(verdict.root == Verdict::Place{1, 0});
  REQUIRE(verdict.parts ==
          std::vector<std::vector<Part>>{{Part::kConsequence, Part::kConsequence}, {Part::kRoot}});
}

TEST_CASE("where all lost connections, the one that was told first is the root") {
  const std::vector nodes{node(0, {ended(0, kOne, CauseClass::kPeerGone)}),
                          node(1, {ended(2, kOne, CauseClass::kPeerGone)})};
  REQUIRE(judge(nodes, of_rank(2)).root == Verdict::Place{1, 0});
}

TEST_CASE("of failures that were not told first, the one longest before the end was known there is earlier") {
  std::vector nodes{node(0, {ended(0, kOne, CauseClass::kPeerGone)}), node(1, {ended(2, kOne)}),
                    node(2, {ended(4, kOne)})};
  nodes[1].workers[0].before_outcome_ms = -3;
  nodes[2].workers[0].before_outcome_ms = 4;
  REQUIRE(judge(nodes, of_rank(0)).root == Verdict::Place{2, 0});
}

TEST_CASE("on one node the earlier exception counts, and a tie goes to the end that was learnt first") {
  std::vector nodes{node(0, {ended(1, kOne), ended(0, kOne)})};
  REQUIRE(judge(nodes, of_rank(1)).root == Verdict::Place{0, 0});
  nodes[0].workers[1].wall_time_s = 4;
  REQUIRE(judge(nodes, of_rank(1)).root == Verdict::Place{0, 1});
}

TEST_CASE("where a node was lost or the job was asked to end, no worker is the root") {
  const std::vector nodes{node(0, {ended(0, kOne, CauseClass::kPeerGone), ended(1, kOne)})};
  const Verdict verdict = judge(nodes, of_rank(-1));
  REQUIRE_FALSE(verdict.root);
  REQUIRE(verdict.parts[0] == std::vector{Part::kConsequence, Part::kFailed});
}

TEST_CASE("a preempted worker is no failure, whether or not it was asked to end") {
  const WorkerOutcome by_itself = ended(0, {.code = kExitPreempted}, CauseClass::kPreempted);
  WorkerOutcome asked = ended(1, {.code = kExitPreempted}, CauseClass::kPreempted);
  asked.stopped_by_us = true;
  for (const WorkerOutcome& outcome : {by_itself, asked}) {
    REQUIRE_FALSE(is_failure(outcome));
    REQUIRE(judged(outcome, kBoom) == Cause{CauseClass::kPreempted});
  }
  const std::vector<NodeReport> nodes{node(0, {by_itself, asked})};
  const Verdict verdict = judge(nodes, of_rank(0));
  REQUIRE_FALSE(verdict.root);
  REQUIRE(verdict.parts[0] == std::vector<Part>(2, Part::kPreempted));
  REQUIRE(to_string(Part::kPreempted) == "preempted");
}

TEST_CASE("a worker that could not be started is a failure") {
  WorkerOutcome outcome = ended(0, {});
  outcome.pid = 0;
  outcome.cause.text = "no such file";
  REQUIRE(judged(outcome).kind == CauseClass::kNotStarted);
  REQUIRE(judge(std::vector{node(0, {outcome})}, of_rank(0)).root == Verdict::Place{0, 0});
}

TEST_CASE("a node's part survives its JSON") {
  NodeReport report = node(3, {ended(6, {.signal = 11, .core = true}, CauseClass::kCrash), stopped(7)});
  WorkerOutcome& worker = report.workers[0];
  worker.cause = {CauseClass::kCrash, "Segmentation fault", "a.cc:1"};
  worker.device = "GPU 1";
  worker.progress = "step 9";
  worker.stderr_tail = {"a", "b"};
  worker.kernel = {"NVRM"};
  worker.error_file = "/e";
  worker.error_message = "m";
  worker.error_callstack = "c\n  d";
  worker.before_outcome_ms = -4;
  report.kernel = {"x"};
  REQUIRE(node_report_from_message(to_message(report)) == report);
}

TEST_CASE("lists of a node's part are cut, and control bytes are taken out of all its texts") {
  NodeReport report = node(0, {ended(6, kOne)});
  report.kernel.assign(TextCleaner::kMaxList + 1, "x");
  report.workers[0].cause = {CauseClass::kException, "a\x1b[2Jb", "c\nd"};
  report.workers[0].error_message = "one\x1b[2J\ntwo";
  const auto back = node_report_from_message(to_message(report));
  REQUIRE_OK(back);
  REQUIRE(back->kernel.size() == TextCleaner::kMaxList);
  const WorkerOutcome& worker = back->workers[0];
  REQUIRE(worker.cause.where == "c d");
  REQUIRE(worker.error_message.find("\ntwo") != std::string::npos);
  for (const std::string& text : {worker.cause.text, std::string(worker.error_message)})
    REQUIRE(text.find('\x1b') == std::string::npos);
}

TEST_CASE("what is not a node's part is a protocol error") {
  const std::string good = to_message(node(0, {ended(0, kOne)}));
  for (std::size_t size = 0; size < good.size(); ++size) {
    const auto report = node_report_from_message(good.substr(0, size));
    REQUIRE_FALSE(report);
    REQUIRE(report.error().code == muster::ErrorCode::kProtocol);
  }
}

TEST_CASE("a part of thousands of loud workers keeps to its size, and every end is in it") {
  NodeReport report = node(0, {});
  for (int rank = 0; rank < 2000; ++rank) {
    report.workers.push_back(ended(rank, kOne));
    report.workers.back().stderr_tail.assign(20, std::string(1500, 'x'));
  }
  const std::string message = to_message(report);
  REQUIRE(message.size() <= kMaxNodeMessageBytes);
  const auto back = node_report_from_message(message);
  REQUIRE_OK(back);
  REQUIRE(back->workers.size() == 2000);
  REQUIRE(back->workers[0].stderr_tail.size() == 20);
}

TEST_CASE("report.json labels every worker and repeats the root cause") {
  JobReport report;
  report.program = "train.py";
  report.run_id = "job";
  report.max_restarts = 2;
  report.attempt = 2;
  report.notice = of_rank(2);
  report.notice.exit_code = 139;
  report.notice.text = "rank 2 was killed";
  report.restarts = {"rank 0 exited", "rank 1 exited"};
  report.missing = {2};
  report.nodes = {node(0, {ended(0, kOne, CauseClass::kPeerGone), stopped(1)}),
                  node(1, {ended(2, {.signal = 11}, CauseClass::kCrash), ended(3, {})})};
  report.nodes[1].workers[0].stderr_tail = {"bytes \xff that are no text"};
  const auto json = nlohmann::json::parse(to_json(report, judge(report.nodes, report.notice)));
  REQUIRE(json.at("version") == 1);
  REQUIRE(json.at("exit_status") == 139);
  REQUIRE(json.at("restarts_used") == 2);
  REQUIRE(json.at("restarts").size() == 2);
  REQUIRE(json.at("missing_nodes") == nlohmann::json::array({2}));
  REQUIRE(json.at("root_cause").at("rank") == 2);
  REQUIRE(json.at("root_cause").at("host") == "host1");
  REQUIRE(json.at("root_cause").at("cause") == "crash");
  std::vector<std::string> labels;
  for (const auto& worker : json.at("workers")) labels.push_back(worker.at("label"));
  REQUIRE(labels == std::vector<std::string>{"consequence", "stopped by muster", "root cause", "succeeded"});
}

TEST_CASE("a machine is at fault where its GPU is broken, not where a program broke its own work") {
  const auto failed = [](std::string words, std::string kernel) {
    WorkerOutcome out = ended(0, {.code = 1}, CauseClass::kGpuFault);
    out.cause.text = std::move(words);
    if (!kernel.empty()) out.kernel.push_back("NVRM: Xid (PCI:0000:3b:00): " + kernel);
    return out;
  };
  REQUIRE(is_machine_at_fault(failed("", "79, pid=7, name=python, GPU has fallen off the bus.")));
  REQUIRE(is_machine_at_fault(failed("", "48, pid=7, name=python, DBE")));
  REQUIRE(is_machine_at_fault(failed("CUDA error: uncorrectable ECC error encountered", "")));
  REQUIRE_FALSE(is_machine_at_fault(failed("", "31, pid=7, name=python, MMU Fault")));
  REQUIRE_FALSE(is_machine_at_fault(failed("CUDA error: an illegal memory access was encountered", "")));
  WorkerOutcome other = ended(0, {.code = 1});
  other.cause.text = "uncorrectable ECC";  // in a program's own words
  REQUIRE_FALSE(is_machine_at_fault(other));
}
