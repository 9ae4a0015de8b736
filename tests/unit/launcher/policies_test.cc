// SPDX-License-Identifier: Apache-2.0
#include "launcher/exit_status.h"
#include "launcher/restart_policy.h"
#include "launcher/stop_ladder.h"
#include "launcher/supervision.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
using Orders = Supervision::Orders;

namespace {

const Instant kStart{};
constexpr Millis kGrace{1000};
const ProcessEnd kOk{};
const ProcessEnd kSeven{.code = 7};

}  // namespace

TEST_CASE("the ladder asks, waits for the grace period, kills, and gives up in the end") {
  StopLadder ladder;
  REQUIRE(ladder.ask(SIGTERM, kGrace, kStart) == SIGTERM);
  REQUIRE(ladder.deadline() == kStart + kGrace);
  REQUIRE(ladder.tick(kStart + Millis(999)) == std::nullopt);
  REQUIRE(ladder.tick(kStart + kGrace) == SIGKILL);
  REQUIRE(ladder.rung() == StopLadder::Rung::kKilled);
  REQUIRE(ladder.tick(kStart + kGrace + StopLadder::kAfterKill) == std::nullopt);
  REQUIRE(ladder.rung() == StopLadder::Rung::kGivenUp);
  REQUIRE(ladder.deadline() == std::nullopt);
}

TEST_CASE("a second request skips to SIGKILL, a third sends nothing") {
  StopLadder ladder;
  REQUIRE(ladder.ask(SIGINT, kGrace, kStart) == SIGINT);
  REQUIRE(ladder.ask(SIGTERM, kGrace, kStart) == SIGKILL);
  REQUIRE(ladder.ask(SIGTERM, kGrace, kStart) == std::nullopt);
}

TEST_CASE("an attempt in which all workers exit with 0 succeeds without orders") {
  Supervision attempt(2, kGrace);
  REQUIRE(attempt.worker_ended(1, kOk, false, kStart) == Orders{});
  REQUIRE_FALSE(attempt.finished());
  REQUIRE(attempt.worker_ended(0, kOk, false, kStart) == Orders{});
  REQUIRE(attempt.finished());
  REQUIRE(attempt.end() == AttemptEnd::kSucceeded);
}

TEST_CASE("the first failure stops the others and is announced once") {
  Supervision attempt(3, kGrace);
  REQUIRE(attempt.worker_ended(1, kSeven, false, kStart) == Orders{SIGTERM, true});
  REQUIRE(attempt.end() == AttemptEnd::kWorkerFailed);
  REQUIRE(attempt.worker_ended(0, ProcessEnd{.signal = SIGTERM}, false, kStart) == Orders{});
  REQUIRE(attempt.tick(kStart + kGrace) == Orders{SIGKILL, false});
  REQUIRE(attempt.worker_ended(2, ProcessEnd{.signal = SIGKILL}, false, kStart) == Orders{});
  REQUIRE(attempt.finished());
  REQUIRE(attempt.first_failure() == 1);
  REQUIRE_FALSE(attempt.stopped_by_us(1));
  REQUIRE(attempt.stopped_by_us(0));
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
  REQUIRE(attempt.signal_received(SIGINT, kStart) == Orders{SIGINT, true});
  REQUIRE(attempt.end() == AttemptEnd::kSignalled);
  REQUIRE(attempt.stop_signal() == SIGINT);
  REQUIRE(attempt.signal_received(SIGTERM, kStart) == Orders{SIGKILL, false});
  REQUIRE(attempt.stop_signal() == SIGINT);
}

TEST_CASE("a signal that comes while the workers are being stopped is remembered") {
  Supervision attempt(2, kGrace);
  (void)attempt.worker_ended(1, kSeven, false, kStart);
  REQUIRE(attempt.stop_signal() == 0);
  REQUIRE(attempt.signal_received(SIGTERM, kStart) == Orders{SIGKILL, false});
  REQUIRE(attempt.stop_signal() == SIGTERM);
  REQUIRE(attempt.end() == AttemptEnd::kWorkerFailed);
}

TEST_CASE("news from another node stops the workers but does not shorten a grace period") {
  Supervision attempt(1, kGrace);
  REQUIRE(attempt.stopped_from_outside(AttemptEnd::kWorkerFailed, kStart) == Orders{SIGTERM, false});
  REQUIRE(attempt.stopped_from_outside(AttemptEnd::kPeerLost, kStart) == Orders{});
  REQUIRE(attempt.end() == AttemptEnd::kWorkerFailed);
}

TEST_CASE("workers that were not started count as ended") {
  Supervision attempt(4, kGrace);
  REQUIRE(attempt.start_failed(1, kStart) == Orders{SIGTERM, true});
  REQUIRE(attempt.running() == 1);
  (void)attempt.worker_ended(0, kOk, false, kStart);
  REQUIRE(attempt.finished());
  REQUIRE(attempt.end() == AttemptEnd::kNotStarted);
}

TEST_CASE("a worker that does not even die of SIGKILL does not hold the launcher for ever") {
  Supervision attempt(1, kGrace);
  (void)attempt.signal_received(SIGTERM, kStart);
  (void)attempt.tick(kStart + kGrace);
  (void)attempt.tick(kStart + kGrace + StopLadder::kAfterKill);
  REQUIRE(attempt.finished());
  REQUIRE(attempt.running() == 1);
}

TEST_CASE("only a worker's failure is worth a restart, while there are restarts left") {
  REQUIRE(after(AttemptEnd::kWorkerFailed, 0, 1) == Next::kRestart);
  REQUIRE(after(AttemptEnd::kWorkerFailed, 1, 1) == Next::kExit);
  for (const AttemptEnd end :
       {AttemptEnd::kSucceeded, AttemptEnd::kSignalled, AttemptEnd::kPeerLost, AttemptEnd::kNotStarted})
    REQUIRE(after(end, 0, 9) == Next::kExit);
}

TEST_CASE("an end is a code, or a signal as 128 + n for shells and -n for torchrun") {
  REQUIRE(kSeven.shell_code() == 7);
  REQUIRE(kSeven.torchrun_code() == 7);
  const ProcessEnd killed{.signal = SIGKILL};
  REQUIRE(killed.shell_code() == 137);
  REQUIRE(killed.torchrun_code() == -9);
  REQUIRE_FALSE(killed.ok());
}

TEST_CASE("signals have names both ways") {
  REQUIRE(signal_name(SIGTERM) == "SIGTERM");
  REQUIRE(signal_number("SIGTERM") == SIGTERM);
  REQUIRE(signal_number("USR1") == SIGUSR1);
  REQUIRE(signal_number("SIGNOPE") == 0);
}
