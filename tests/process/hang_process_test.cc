// SPDX-License-Identifier: Apache-2.0
// What is known of workers that hang, from real processes and files: stacks, heartbeats, what is kept of it.
#include <fstream>
#include <memory>
#include <signal.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "launcher/hang/hang_report.h"
#include "launcher/hang/process_state.h"
#include "launcher/hang/stack_collector.h"
#include "tests/support/catch.h"
#include "tests/support/spawn_one.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;
using muster::test::TemporaryDirectory;

namespace {

/// A process that does nothing until it is gone with this object.
class Idle {
 public:
  explicit Idle(Spawner& spawner) {
    StringBlock arguments, environment;
    for (const char* text : {"sleep", "100"}) arguments.add(text);
    auto spawned = spawn_one(spawner, {"/bin/sleep", arguments.data(), environment.data(), -1, -1, {}});
    REQUIRE(spawned);
    child_ = *std::move(spawned);
  }
  ~Idle() {
    ::kill(child_.pid, SIGKILL);
    int status = 0;
    ::waitpid(child_.pid, &status, 0);
  }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  [[nodiscard]] pid_t pid() const { return child_.pid; }
  [[nodiscard]] char state() const {
    const auto threads = read_threads(child_.pid, 1);
    return threads.empty() ? '?' : threads[0].state;
  }

 private:
  Spawned child_;
};

template <class Done>
void run_until(boost::asio::io_context& io, const Done& done) {
  const Instant deadline = SteadyClock::now() + std::chrono::seconds(60);
  while (!done()) {
    REQUIRE(SteadyClock::now() < deadline);
    io.run_one_for(std::chrono::seconds(1));
    io.restart();
  }
}

void write_tool(const std::string& path, const std::string& text) {
  std::ofstream(path) << "#!/bin/sh\n" << text;
  REQUIRE(::chmod(path.c_str(), 0755) == 0);
}

}  // namespace

TEST_CASE("a worker that a tool has stopped goes on when the tool's time is over") {
  const TemporaryDirectory folder;
  // As gdb would that waits for a disk.
  write_tool(folder.path() + "/gdb", "for last; do :; done\nkill -STOP $last\nexec /bin/sleep 100\n");
  const Environment environment{{"PATH", folder.path()}};
  boost::asio::io_context io;
  Spawner spawner{std::nullopt};
  const Idle worker(spawner);
  std::vector<RankSnapshot> ranks(1);
  ranks[0].pid = worker.pid();
  bool done = false;
  SECTION("of one tool") {
    StackCollector short_of_time(io, environment, {Millis(1000), Millis(30'000)});
    short_of_time.collect(ranks, [&] { done = true; });
    run_until(io, [&] { return done; });
    REQUIRE(ranks[0].tool_problem == "gdb did not answer in time");
  }
  SECTION("of all") {
    StackCollector short_of_time(io, environment, {Millis(30'000), Millis(1000)});
    short_of_time.collect(ranks, [&] { done = true; });
    run_until(io, [&] { return done; });
    REQUIRE(ranks[0].tool_problem == "gdb did not answer in time");
  }
  SECTION("because the workers are stopped") {
    auto dropped = std::make_unique<StackCollector>(io, environment, StackCollector::Timeouts{});
    dropped->collect(ranks, [] { FAIL("nobody waits any more"); });
    run_until(io, [&] { return worker.state() == 'T'; });
    dropped.reset();
  }
  run_until(io, [&] { return worker.state() == 'S'; });
  REQUIRE(ranks[0].stacks.empty());
}

TEST_CASE("of many hangs the first and the latest are kept") {
  const TemporaryDirectory folder;
  LogSettings settings;
  settings.directory = folder.path();
  LogDirectory directory;
  REQUIRE(directory.create(settings, "run", {}));
  REQUIRE(directory.begin_attempt(Assignment{}, "host-a", 1));
  const Log log("test");
  HangLog hang_log(directory, log);
  std::string file;
  for (int number = 1; number <= static_cast<int>(HangLog::kMostHangs) + 3; ++number) {
    HangReport hang;
    hang.host = "host-a";
    hang.wall_time_s = number;
    RankSnapshot& rank = hang.ranks.emplace_back();
    rank.stacks = {{"Thread 1", {"read"}}, {"Thread 2", {"poll"}}};
    file = hang_log.add(std::move(hang));
    hang_log.set_outliers({{0}, "behind"});
    hang_log.set_over(Millis(number));
  }
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  const auto hangs = nlohmann::json::parse(text.str()).at("hangs");
  REQUIRE(hangs.size() == HangLog::kMostHangs);
  REQUIRE(hangs.front().at("time") == 1);
  REQUIRE(hangs.at(1).at("time") == 5);
  REQUIRE(hangs.back().at("time") == 19);
  for (const auto& hang : hangs) {
    REQUIRE(hang.at("over_after_ms") == hang.at("time"));
    REQUIRE(hang.at("outlier_ranks") == std::vector<int>{0});
  }
  REQUIRE(hangs.front().at("ranks").at(0).at("stacks").size() == 2);
  REQUIRE(hangs.at(7).at("ranks").at(0).at("stacks").size() == 1);
  REQUIRE(hangs.back().at("ranks").at(0).at("stacks").size() == 2);
}
