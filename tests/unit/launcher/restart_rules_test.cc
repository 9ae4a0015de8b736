// SPDX-License-Identifier: Apache-2.0
// Which failures are tried again: --restart-on, --no-restart-on and what follows from them.
#include <signal.h>

#include "launcher/job/exit_status.h"
#include "launcher/job/restart_policy.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster;
using namespace muster::launcher;

namespace {

FailureRules only(std::string_view text) {
  auto rules = FailureRules::parse("--restart-on", text);
  REQUIRE(rules);
  return *rules;
}
FailureRules never(std::string_view text) {
  auto rules = FailureRules::parse("--no-restart-on", text);
  REQUIRE(rules);
  return *rules;
}

FailureFacts exited(int code) {
  return {CauseClass::kExitCode, code, 0};
}
const FailureFacts kBus{CauseClass::kCrash, 128 + SIGBUS, SIGBUS};
const FailureFacts kGpuFull{CauseClass::kGpuMemory, 1, 0};
const FailureFacts kHung{CauseClass::kHang, kExitHang, 0};
const FailureFacts kSaved{CauseClass::kPreempted, kExitPreempted, 0};
const FailureFacts kMissing{CauseClass::kNotStarted, kExitNotFound, 0};

RestartDecision decide(const FailureFacts& failure, const RestartRules& rules,
                       AttemptEnd end = AttemptEnd::kWorkerFailed, int used = 0, int most = 9) {
  return decide_restart(end, failure, used, most, rules);
}

}  // namespace

TEST_CASE("any failure of a worker is tried again, while there are restarts left") {
  const RestartRules rules;
  for (const FailureFacts& failure : {exited(7), kBus, kGpuFull}) {
    REQUIRE(decide(failure, rules) == RestartDecision{.restart = true});
    REQUIRE(decide(failure, rules, AttemptEnd::kWorkerFailed, 1, 1) == RestartDecision{.none_left = true});
    REQUIRE(decide(failure, rules, AttemptEnd::kWorkerFailed, 0, 0) == RestartDecision{});
  }
  for (const AttemptEnd end : {AttemptEnd::kSucceeded, AttemptEnd::kSignalled, AttemptEnd::kPeerLost,
                               AttemptEnd::kNotStarted, AttemptEnd::kPreempted, AttemptEnd::kHung})
    REQUIRE(decide(exited(7), rules, end) == RestartDecision{});
  REQUIRE(rules.after_lost_node());
}

TEST_CASE("only what restart-on names is tried again, and it says why where it is not") {
  RestartRules rules;
  rules.only = only("node,oom,signal:SIGBUS,exit:75,64-78");
  for (const FailureFacts& failure : {exited(75), exited(64), kBus, kGpuFull})
    REQUIRE(decide(failure, rules).restart);
  REQUIRE(decide(exited(7), rules).why ==
          "not restarted: --restart-on=node,oom,signal:SIGBUS,exit:75,64-78 does not name exit code 7");
  REQUIRE(
      decide({CauseClass::kCrash, 139, SIGSEGV}, rules).why ==
      "not restarted: --restart-on=node,oom,signal:SIGBUS,exit:75,64-78 does not name crash, SIGSEGV, exit "
      "code 139");
  REQUIRE(rules.after_lost_node());
  rules.only = only("oom");
  REQUIRE_FALSE(rules.after_lost_node());
}

TEST_CASE("what no-restart-on names is final, whatever restart-on names") {
  RestartRules rules;
  rules.never = never("2,64-78,139,gpu-out-of-memory");
  for (const int code : {2, 64, 70, 78, 139}) REQUIRE_FALSE(decide(exited(code), rules).restart);
  for (const int code : {1, 3, 63, 79, 137}) REQUIRE(decide(exited(code), rules).restart);
  REQUIRE(decide(exited(70), rules).why ==
          "not restarted: --no-restart-on=2,64-78,139,gpu-out-of-memory names exit code 70");
  rules.only = only("exit:1-255,oom");
  rules.never = never("exit:70,node");
  REQUIRE(decide(exited(71), rules).restart);
  REQUIRE_FALSE(decide(exited(70), rules).restart);
  REQUIRE_FALSE(rules.after_lost_node());
}

TEST_CASE("a hang is worth a restart where that was asked for and one is left") {
  RestartRules rules;
  REQUIRE(decide(kHung, rules, AttemptEnd::kHung) == RestartDecision{});
  rules.after_hang = true;
  REQUIRE(decide(kHung, rules, AttemptEnd::kHung).restart);
  REQUIRE_FALSE(decide(kHung, rules, AttemptEnd::kHung, 3, 3).restart);
  rules.never = never("124");
  REQUIRE_FALSE(decide(kHung, rules, AttemptEnd::kHung).restart);
}

TEST_CASE("who saved its state or could not be started is tried again only where that is named") {
  RestartRules rules;
  rules.only = only("preempted,not-started");
  REQUIRE(decide(kSaved, rules, AttemptEnd::kPreempted).restart);
  REQUIRE(decide(kMissing, rules, AttemptEnd::kNotStarted).restart);
  // Still a preemption, with its own exit code.
  REQUIRE(decide(kSaved, rules, AttemptEnd::kPreempted, 9, 9) == RestartDecision{});
  rules.only = only("exit:1-84");
  REQUIRE(decide(kSaved, rules, AttemptEnd::kPreempted) == RestartDecision{});
}

TEST_CASE("groups of failures are classes of the report") {
  REQUIRE(only("oom").names_class(CauseClass::kHostMemory));
  REQUIRE(only("oom").names_class(CauseClass::kGpuMemory));
  REQUIRE(only("gpu").names_class(CauseClass::kGpuFault));
  REQUIRE(only("store").names_class(CauseClass::kNetwork));
  REQUIRE(only("store").names_class(CauseClass::kPeerGone));
  REQUIRE_FALSE(only("gpu").names_class(CauseClass::kGpuMemory));
  for (const CauseName& cause : kCauseNames) {
    if (cause.kind == CauseClass::kNone || cause.kind == CauseClass::kStopped) continue;
    REQUIRE(only(cause.id).names_class(cause.kind));
    REQUIRE_THAT(failure_names(), Catch::Contains(std::string(cause.id)));
  }
}

TEST_CASE("what names no failure is refused with the nearest that does") {
  for (const std::string text : {"0", "256", "7-", "-7", "78-64", "1,,2", "1,2 3", "1-2-3", " 1", "exit:",
                                 "exit:x", "exit:70-", "signal:", "signal:SIGNOPE", "none", "stopped", ","}) {
    INFO(text);
    const auto rules = FailureRules::parse("--no-restart-on", text);
    REQUIRE_FALSE(rules);
    REQUIRE(rules.error().code == ErrorCode::kInvalidArgument);
    REQUIRE_THAT(rules.error().message, Catch::Contains("--no-restart-on=" + text));
  }
  REQUIRE_THAT(FailureRules::parse("--restart-on", "hangs").error().message,
               Catch::Contains("the nearest is hang;"));
  REQUIRE_THAT(FailureRules::parse("--restart-on", "node,oon").error().message, Catch::Contains("'oon'"));
  REQUIRE_THAT(FailureRules::parse("--restart-on", "oon").error().message,
               Catch::Contains("the nearest is oom;"));
  REQUIRE(FailureRules::parse("--restart-on", "").value().empty());
}
