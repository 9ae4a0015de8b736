// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job_clock.h"

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/jobs_table.h"

using namespace muster;
using namespace std::chrono_literals;
using membership::Phase;

namespace {

const Instant kNoon{12h};

}  // namespace

TEST_CASE("a job's clock stands still while it is stopped, and goes on from there") {
  JobClock clock;
  REQUIRE(clock.now(kNoon) == kNoon);
  clock.pause(kNoon + 1s);
  clock.pause(kNoon + 2s);
  REQUIRE(clock.now(kNoon) == kNoon);
  REQUIRE(clock.now(kNoon + 1min) == kNoon + 1s);
  REQUIRE(clock.real(kNoon + 5s) == Instant::max());
  clock.skip(10s);  // it stands anyway
  clock.resume(kNoon + 1min);
  clock.resume(kNoon + 2min);
  REQUIRE(clock.now(kNoon + 1min) == kNoon + 1s);
  REQUIRE(clock.now(kNoon + 2min) == kNoon + 61s);
  REQUIRE(clock.real(kNoon + 61s) == kNoon + 2min);
  REQUIRE(clock.real(Instant::max()) == Instant::max());
}

TEST_CASE("what a stopped process has missed is skipped, and those who had hardly any time left get some") {
  REQUIRE(JobClock::frozen(kNoon, kNoon + 5s, kNoon + 100s) == 100s);  // since it ran last, at most
  REQUIRE(JobClock::frozen(kNoon, kNoon + 1h, kNoon + 1h + 3s) == 6s);
  REQUIRE(JobClock::frozen(kNoon + 10s, kNoon + 5s, kNoon + 10s) == 5s);
  JobClock clock;
  clock.skip(100s);
  REQUIRE(clock.now(kNoon + 100s) == kNoon);
  REQUIRE(clock.real(kNoon) == kNoon + 100s);
}

// Each: what a job waits for, until when, and how it shows that this is over.
TEST_CASE("no deadline of a job comes nearer while its coordinator could do nothing") {
  JobsOptions options;
  options.keep = 20s;
  Table t(options);
  JobClock clock;
  control::Join join;
  join.settings.min_nodes = 1;
  join.settings.max_nodes = 2;
  join.settings.heartbeat_timeout = 20s;
  join.settings.join_timeout = 20s;
  join.settings.last_call_timeout = 20s;
  join.settings.stop_timeout = 20s;
  join.settings.reconnect_grace = 20s;
  join.settings.max_restarts = 1;
  join.settings.cool_down = 0ms;
  Instant real = kNoon;
  const auto enter = [&](std::uint64_t node) {
    join.request.id = {0, node};
    t.jobs.connected(node, "a", "127.0.0.1");
    t.jobs.receive(node, join, clock.now(real));
  };
  const auto round = [&]() -> const membership::Round* { return t.jobs.find_round("a"); };
  const auto advance = [&] { t.jobs.advance(clock.now(real)); };
  std::function<bool()> over;
  SECTION("a silent node") {
    join.settings.min_nodes = 2;
    enter(1);
    over = [&] { return round() == nullptr || round()->nodes.empty(); };
  }
  SECTION("the last call") {
    join.settings.heartbeat_timeout = join.settings.join_timeout = 1h;
    enter(1);
    over = [&] { return round()->phase == Phase::kRunning; };
  }
  SECTION("a gathering") {
    join.settings.min_nodes = 2;
    join.settings.heartbeat_timeout = 1h;
    enter(1);
    over = [&] { return round()->phase == Phase::kClosed; };
  }
  SECTION("a member that is away") {
    join.settings.heartbeat_timeout = 1h;
    enter(1);
    enter(2);
    t.jobs.disconnected(2, "timeout", clock.now(real), membership::Break::kOther);
    over = [&] { return round()->phase != Phase::kRunning; };
  }
  SECTION("survivors that stop their workers") {
    join.settings.heartbeat_timeout = join.settings.join_timeout = join.settings.last_call_timeout = 1h;
    enter(1);
    enter(2);
    t.jobs.receive(1, control::WorkerFailed{0, 0, 1, true, false, "x"}, clock.now(real));
    t.jobs.receive(1, control::Ready{0, 1}, clock.now(real));
    REQUIRE(round()->num_stopping == 1);
    over = [&] { return !round()->stop_deadline; };
  }
  SECTION("a job that is remembered") {
    enter(1);
    t.jobs.receive(1, control::Leave{"done"}, clock.now(real));
    over = [&] { return round() == nullptr; };
  }
  real += 10s;
  advance();
  REQUIRE_FALSE(over());
  clock.skip(5min);
  real += 5min;
  advance();
  REQUIRE_FALSE(over());
  clock.pause(real);
  real += 5min;
  advance();
  REQUIRE_FALSE(over());
  REQUIRE(clock.real(t.jobs.next_deadline()) == Instant::max());
  clock.resume(real);
  advance();
  REQUIRE_FALSE(over());
  REQUIRE(clock.real(t.jobs.next_deadline()) == real + 10s);
  real += 10s;
  advance();
  REQUIRE(over());
}
