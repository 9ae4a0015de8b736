// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "launcher/job/exit_status.h"
#include "launcher/job/restart_policy.h"
#include "launcher/job/supervision.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster;
using namespace muster::launcher;
using Actions = Supervision::Actions;

namespace {

const Instant kStart{};
constexpr Millis kGrace{1000};
const ProcessEnd kOk{};
const ProcessEnd kSeven{.code = 7};

}  // namespace

TEST_CASE(
    "the shutdown sequence asks, aborts near the end of the grace period, kills at its end, and gives up") {
  ShutdownSequence sequence;
  REQUIRE(sequence.ask(SIGTERM, kGrace, kStart) == SIGTERM);
  REQUIRE(sequence.deadline() == kStart + Millis(900));
  REQUIRE(sequence.tick(kStart + Millis(899)) == std::nullopt);
  REQUIRE(sequence.tick(kStart + Millis(900)) == SIGABRT);
  REQUIRE(sequence.stage() == ShutdownSequence::Stage::kAborted);
  REQUIRE(sequence.deadline() == kStart + kGrace);
  REQUIRE(sequence.tick(kStart + kGrace) == SIGKILL);
  REQUIRE(sequence.stage() == ShutdownSequence::Stage::kKilled);
  REQUIRE(sequence.tick(kStart + kGrace + ShutdownSequence::kAfterKill) == std::nullopt);
  REQUIRE(sequence.stage() == ShutdownSequence::Stage::kGivenUp);
  REQUIRE(sequence.deadline() == std::nullopt);
}

TEST_CASE("a second request skips to SIGKILL, a third sends nothing") {
  ShutdownSequence sequence;
  REQUIRE(sequence.ask(SIGINT, kGrace, kStart) == SIGINT);
  REQUIRE(sequence.ask(SIGTERM, kGrace, kStart) == SIGKILL);
  REQUIRE(sequence.ask(SIGTERM, kGrace, kStart) == std::nullopt);
}

TEST_CASE("of a long grace period two seconds are left for the abort, and a request skips it too") {
  ShutdownSequence sequence;
  (void)sequence.ask(SIGTERM, Millis(30'000), kStart);
  REQUIRE(sequence.deadline() == kStart + Millis(28'000));
  REQUIRE(sequence.tick(kStart + Millis(28'000)) == SIGABRT);
  REQUIRE(sequence.deadline() == kStart + Millis(30'000));
  REQUIRE(sequence.ask(SIGTERM, Millis(30'000), kStart + Millis(28'001)) == SIGKILL);
  ShutdownSequence at_once;
  (void)at_once.ask(SIGTERM, Millis(0), kStart);
  REQUIRE(at_once.tick(kStart) == SIGABRT);
  REQUIRE(at_once.tick(kStart) == SIGKILL);
}

TEST_CASE("under Slurm a stop ends before Slurm's SIGKILL, whenever it begins") {
  constexpr std::int64_t kEnd = 1'795'280'400;  // 2026-11-21 17:00:00 UTC
  const Millis thirty{30'000};
  REQUIRE(grace_under_slurm(thirty, 0, kEnd) == thirty);            // not told
  REQUIRE(grace_under_slurm(thirty, kEnd, kEnd - 7200) == thirty);  // scancel
  REQUIRE(grace_under_slurm(thirty, kEnd, kEnd - 5) == thirty);
  REQUIRE(grace_under_slurm(thirty, kEnd, kEnd - 1) == Millis(26'000));
  REQUIRE(grace_under_slurm(thirty, kEnd, kEnd) == Millis(25'000));  // SIGTERM of the time limit
  REQUIRE(grace_under_slurm(kSlurmGrace, kEnd, kEnd) == kSlurmGrace);
  REQUIRE(grace_under_slurm(Millis(500), kEnd, kEnd) == Millis(500));
  REQUIRE(grace_under_slurm(Millis(600'000), kEnd, kEnd - 120) == Millis(145'000));  // --signal=TERM@120
  REQUIRE(grace_under_slurm(thirty, kEnd, kEnd + 20) == Millis(5'000));
  REQUIRE(grace_under_slurm(thirty, kEnd, kEnd + 29) == Millis(1'000));
  REQUIRE(grace_under_slurm(thirty, kEnd, kEnd + 31) == thirty);  // the limit was moved since
  REQUIRE(grace_under_slurm(thirty, 100'000'000'000, 0) == thirty);
  REQUIRE(grace_under_slurm(thirty, 1, std::numeric_limits<std::int64_t>::max()) == thirty);
}

TEST_CASE("the grace of a stop can be set until it begins") {
  Supervision attempt(1, kGrace);
  attempt.set_grace(Millis(2000));
  (void)attempt.signal_received(SIGTERM, kStart);
  attempt.set_grace(kGrace);
  REQUIRE(attempt.grace() == Millis(2000));
  REQUIRE(attempt.deadline() == kStart + Millis(1800));
}

TEST_CASE("a signal that another node was quicker to tell of does not skip ahead, the next one does") {
  Supervision attempt(1, kGrace);
  REQUIRE(attempt.stopped_from_outside(AttemptEnd::kWorkerFailed, kStart, true) == Actions{SIGTERM, false});
  REQUIRE_FALSE(attempt.skips_ahead());
  REQUIRE(attempt.signal_received(SIGTERM, kStart) == Actions{});
  REQUIRE(attempt.stop_signal() == SIGTERM);
  REQUIRE(attempt.skips_ahead());
  REQUIRE(attempt.signal_received(SIGTERM, kStart) == Actions{SIGKILL, false});
  Supervision failed(1, kGrace);
  (void)failed.stopped_from_outside(AttemptEnd::kWorkerFailed, kStart);
  REQUIRE(failed.skips_ahead());
}

TEST_CASE("who is left to save its state is told to end when another node failed, or one beside it did") {
  const ProcessEnd preempted{.code = kExitPreempted};
  Supervision elsewhere(2, kGrace);
  (void)elsewhere.worker_ended(0, preempted, true, kStart);
  REQUIRE(elsewhere.stopped_from_outside(AttemptEnd::kPreempted, kStart) == Actions{});
  REQUIRE(elsewhere.stopped_from_outside(AttemptEnd::kWorkerFailed, kStart) == Actions{SIGTERM, false});
  Supervision here(3, kGrace);
  (void)here.worker_ended(0, preempted, true, kStart);
  REQUIRE(here.worker_ended(1, preempted, true, kStart) == Actions{});
  REQUIRE(here.worker_ended(2, kSeven, true, kStart) == Actions{SIGTERM, false});
}

TEST_CASE("a hang ends the attempt once, and is another's failure where that came first") {
  Supervision attempt(2, kGrace);
  Actions stop;
  stop.signal_all = SIGTERM;
  stop.announce = true;
  REQUIRE(attempt.hung(kStart) == stop);
  REQUIRE(attempt.end() == AttemptEnd::kHung);
  REQUIRE(attempt.hung(kStart) == Actions{});
  (void)attempt.worker_ended(0, {.signal = SIGTERM}, false, kStart);
  REQUIRE(attempt.stopped_by_us(0));
  Supervision failed(2, kGrace);
  (void)failed.worker_ended(0, kSeven, true, kStart);
  REQUIRE(failed.hung(kStart) == Actions{});
  REQUIRE(failed.end() == AttemptEnd::kWorkerFailed);
  Supervision over(1, kGrace);
  (void)over.worker_ended(0, kOk, true, kStart);
  REQUIRE(over.hung(kStart) == Actions{});
}

TEST_CASE("an attempt in which all workers exit with 0 succeeds without actions") {
  Supervision attempt(2, kGrace);
  REQUIRE(attempt.worker_ended(1, kOk, false, kStart) == Actions{});
  REQUIRE_FALSE(attempt.finished());
  REQUIRE(attempt.worker_ended(0, kOk, false, kStart) == Actions{});
  REQUIRE(attempt.finished());
  REQUIRE(attempt.end() == AttemptEnd::kSucceeded);
}

TEST_CASE("the first failure stops the others and is announced once") {
  Supervision attempt(3, kGrace);
  REQUIRE(attempt.worker_ended(1, kSeven, false, kStart) == Actions{SIGTERM, true});
  REQUIRE(attempt.end() == AttemptEnd::kWorkerFailed);
  REQUIRE(attempt.worker_ended(0, ProcessEnd{.signal = SIGTERM}, false, kStart) == Actions{});
  REQUIRE(attempt.tick(kStart + kGrace) == Actions{SIGABRT, false});
  REQUIRE(attempt.tick(kStart + kGrace) == Actions{SIGKILL, false});
  REQUIRE(attempt.worker_ended(2, ProcessEnd{.signal = SIGKILL}, false, kStart) == Actions{});
  REQUIRE(attempt.finished());
  REQUIRE(attempt.first_failure() == 1);
  REQUIRE_FALSE(attempt.stopped_by_us(1));
  REQUIRE(attempt.stopped_by_us(0));
}

TEST_CASE("where one worker was preempted the others are left to end by themselves for the grace period") {
  const ProcessEnd preempted{.code = kExitPreempted};
  Supervision attempt(3, kGrace);
  REQUIRE(attempt.worker_ended(1, preempted, true, kStart) == Actions{std::nullopt, true});
  REQUIRE(attempt.end() == AttemptEnd::kPreempted);
  REQUIRE(attempt.stopping());
  REQUIRE_FALSE(attempt.told_to_end());
  REQUIRE(attempt.worker_ended(0, preempted, true, kStart) == Actions{});
  REQUIRE_FALSE(attempt.stopped_by_us(0));
  REQUIRE(attempt.first_failure() == 1);
  REQUIRE(attempt.tick(kStart + Millis(899)) == Actions{});
  REQUIRE(attempt.tick(kStart + Millis(900)) == Actions{SIGABRT, false});
  REQUIRE(attempt.told_to_end());
  REQUIRE(attempt.tick(kStart + kGrace) == Actions{SIGKILL, false});
}

TEST_CASE("the signal that preempts may come to the workers first and to muster later: it does not kill") {
  Supervision attempt(2, kGrace);
  (void)attempt.worker_ended(1, ProcessEnd{.code = kExitPreempted}, true, kStart);
  REQUIRE(attempt.signal_received(SIGTERM, kStart + Millis(500)) == Actions{SIGTERM, false});
  REQUIRE(attempt.deadline() == kStart + Millis(500) + Millis(900));
  REQUIRE(attempt.signal_received(SIGTERM, kStart + Millis(501)) == Actions{SIGKILL, false});
  REQUIRE(attempt.end() == AttemptEnd::kPreempted);
}

TEST_CASE("news of another node's preemption signals nobody, and needs no restart") {
  Supervision attempt(1, kGrace);
  REQUIRE(attempt.stopped_from_outside(AttemptEnd::kPreempted, kStart) == Actions{});
  REQUIRE(attempt.end() == AttemptEnd::kPreempted);
  REQUIRE(attempt.tick(kStart + kGrace) == Actions{SIGABRT, false});
}

TEST_CASE("a worker that had ended before the others were signalled was not stopped by us") {
  Supervision attempt(2, kGrace);
  (void)attempt.worker_ended(0, kSeven, false, kStart);
  (void)attempt.worker_ended(1, kSeven, true, kStart);
  REQUIRE_FALSE(attempt.stopped_by_us(1));
  REQUIRE(attempt.first_failure() == 0);
}

TEST_CASE("a signal is passed on as it is, and the second one kills") {
  Supervision attempt(1, kGrace);
  REQUIRE(attempt.signal_received(SIGINT, kStart) == Actions{SIGINT, true});
  REQUIRE(attempt.end() == AttemptEnd::kSignalled);
  REQUIRE(attempt.stop_signal() == SIGINT);
  REQUIRE(attempt.signal_received(SIGTERM, kStart) == Actions{SIGKILL, false});
  REQUIRE(attempt.stop_signal() == SIGINT);
}

TEST_CASE("a signal that comes while the workers are being stopped is remembered") {
  Supervision attempt(2, kGrace);
  (void)attempt.worker_ended(1, kSeven, false, kStart);
  REQUIRE(attempt.stop_signal() == 0);
  REQUIRE(attempt.signal_received(SIGTERM, kStart) == Actions{SIGKILL, false});
  REQUIRE(attempt.stop_signal() == SIGTERM);
  REQUIRE(attempt.end() == AttemptEnd::kWorkerFailed);
}

TEST_CASE("news from another node stops the workers but does not shorten a grace period") {
  Supervision attempt(1, kGrace);
  REQUIRE(attempt.stopped_from_outside(AttemptEnd::kWorkerFailed, kStart) == Actions{SIGTERM, false});
  REQUIRE(attempt.stopped_from_outside(AttemptEnd::kPeerLost, kStart) == Actions{});
  REQUIRE(attempt.end() == AttemptEnd::kWorkerFailed);
}

TEST_CASE("workers that were not started count as ended") {
  Supervision attempt(4, kGrace);
  REQUIRE(attempt.start_failed(1, kStart) == Actions{SIGTERM, true});
  REQUIRE(attempt.running() == 1);
  (void)attempt.worker_ended(0, kOk, false, kStart);
  REQUIRE(attempt.finished());
  REQUIRE(attempt.end() == AttemptEnd::kNotStarted);
}

TEST_CASE("a worker that does not even die of SIGKILL does not hold the launcher for ever") {
  Supervision attempt(1, kGrace);
  (void)attempt.signal_received(SIGTERM, kStart);
  (void)attempt.tick(kStart + kGrace);
  (void)attempt.tick(kStart + kGrace);
  (void)attempt.tick(kStart + kGrace + ShutdownSequence::kAfterKill);
  REQUIRE(attempt.finished());
  REQUIRE(attempt.running() == 1);
}

TEST_CASE("the pause before a restart doubles from its first value up to its most") {
  const auto pauses = [](const char* text) {
    const RestartPause pause = RestartPause::parse(text).value();
    std::vector<std::int64_t> out;
    for (int restart = 1; restart <= 5; ++restart) out.push_back(pause.before(restart).count());
    return out;
  };
  REQUIRE(pauses("0") == std::vector<std::int64_t>{0, 0, 0, 0, 0});
  REQUIRE(pauses("2:9") == std::vector<std::int64_t>{2000, 4000, 8000, 9000, 9000});
  REQUIRE(pauses("0:3") == std::vector<std::int64_t>{0, 1000, 2000, 3000, 3000});
  REQUIRE(pauses("3") == pauses("0:3"));
  REQUIRE(pauses("0.25:0.5") == std::vector<std::int64_t>{250, 500, 500, 500, 500});
  REQUIRE(RestartPause::parse("1:86400").value().before(1'000'000) == Millis(86'400'000));
  for (const char* text : {"", ":", "1:", ":1", "2:1", "-1:2", "1:x", "nan:nan", "1:1e9", "1:2:3"}) {
    INFO(text);
    REQUIRE_FALSE(RestartPause::parse(text));
  }
}

TEST_CASE("an end is a code, or a signal as 128 + n for shells and -n for torchrun") {
  REQUIRE(kSeven.shell_code() == 7);
  REQUIRE(kSeven.torchrun_code() == 7);
  const ProcessEnd killed{.signal = SIGKILL};
  REQUIRE(killed.shell_code() == 137);
  REQUIRE(killed.torchrun_code() == -9);
  REQUIRE_FALSE(killed.ok());
}

TEST_CASE("signals of a program's own doing are told from those that others send") {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
    REQUIRE(is_crash_signal(signal));
  for (const int signal : {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGPIPE, 0, 34})
    REQUIRE_FALSE(is_crash_signal(signal));
}

TEST_CASE("signals have names both ways") {
  REQUIRE(signal_name(SIGTERM) == "SIGTERM");
  REQUIRE(signal_number("SIGTERM") == SIGTERM);
  REQUIRE(signal_number("USR1") == SIGUSR1);
  REQUIRE(signal_number("SIGNOPE") == 0);
}
