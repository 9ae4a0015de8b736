// SPDX-License-Identifier: Apache-2.0
// What musterctl jobs prints.
#include <nlohmann/json.hpp>

#include "launcher/ctl/commands.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
using control::JobState;
using control::NodeState;

namespace {

JobState running() {
  JobState out;
  out.job = "train";
  out.phase = JobState::Phase::kRunning;
  out.generation = 3;
  out.restarts_used = 1;
  out.max_restarts = 5;
  out.num_present = 5;
  out.num_outside = 1;
  out.min_nodes = out.max_nodes = 4;
  out.spares = 1;
  out.num_members = 4;
  out.world_size = 32;
  out.age_ms = 7'300'000;
  out.first_host = "n1";
  out.first_address = "10.0.0.1";
  out.first_port = 29511;
  return out;
}

NodeState member(int rank) {
  NodeState out;
  out.number = static_cast<std::uint64_t>(rank);
  out.host = "n" + std::to_string(rank + 1);
  out.group_rank = rank;
  out.base_rank = rank * 8;
  out.ranks = 8;
  out.heard_ms = 2100;
  out.address = "10.0.0." + std::to_string(rank + 1);
  return out;
}

}  // namespace

TEST_CASE("jobs are a line each, in columns") {
  net::QueryAnswer answer;
  answer.jobs = {running()};
  JobState gathering;
  gathering.job = "next";
  gathering.num_present = 1;
  gathering.min_nodes = 2;
  gathering.max_nodes = 4;
  gathering.max_restarts = 0;
  gathering.age_ms = 17'000;
  gathering.text = "1 of 2 to 4 nodes";
  answer.jobs.push_back(gathering);
  answer.over.num_jobs = 5;
  REQUIRE(
      jobs_text(answer) ==
      "JOB    STATE      NODES  SPARES  RANKS  RESTARTS  AGE  STORE           REACHED  REMARK\n"
      "train  running 3  4/4    1/1     32     1/5       2h   10.0.0.1:29511  -\n"
      "next   gathering  1/2:4  0/0     -      0/0       17s  -               -        1 of 2 to 4 nodes\n"
      "and 3 more jobs\n");
}

TEST_CASE("a job is shown with its nodes, and why those wait that do") {
  net::QueryAnswer answer;
  answer.jobs = {running()};
  answer.jobs[0].epoch = 2;
  answer.jobs[0].step = 140;
  answer.nodes = {member(1), member(0)};
  NodeState spare;
  spare.number = 9;
  spare.host = "n9";
  spare.state = NodeState::State::kWaiting;
  spare.heard_ms = 0;
  spare.address = "10.0.0.9";
  spare.text = "spare 1 of 1; 4 nodes run generation 3";
  answer.nodes.push_back(spare);
  REQUIRE(jobs_text(answer) ==
          "JOB    STATE      NODES  SPARES  RANKS  RESTARTS  AGE  STORE           REACHED           REMARK\n"
          "train  running 3  4/4    1/1     32     1/5       2h   10.0.0.1:29511  epoch 2 step 140\n"
          "\n"
          "NODE  HOST  RANKS  STATE  HEARD  ADDRESS   WHY\n"
          "0     n1    0-7    runs   2s     10.0.0.1\n"
          "1     n2    8-15   runs   2s     10.0.0.2\n"
          "-     n9    -      waits  0s     10.0.0.9  spare 1 of 1; 4 nodes run generation 3\n");
}

TEST_CASE("an ended job shows how it ended, one job all of its text") {
  net::QueryAnswer answer;
  answer.jobs = {running()};
  answer.jobs[0].phase = JobState::Phase::kEnded;
  answer.jobs[0].exit_code = 7;
  const std::string text = "a worker failed on n1: rank 0 exited with code 7 after " + std::string(80, 'x');
  answer.jobs[0].text = text;
  REQUIRE_THAT(jobs_text(answer), Catch::Contains("ended 7") && Catch::Contains(text));
  answer.jobs.push_back(running());
  REQUIRE_THAT(jobs_text(answer), !Catch::Contains(text) && Catch::Contains(text.substr(0, 80)));
}

TEST_CASE("nothing that came over the network steers the terminal, and JSON stays JSON") {
  net::QueryAnswer answer;
  answer.jobs = {running()};
  answer.jobs[0].text = "\x1b[2J evil\n\xff";
  answer.nodes = {member(0)};
  answer.nodes[0].host = "n\x1b[31m\r";
  const std::string text = jobs_text(answer);
  REQUIRE(text.find('\x1b') == std::string::npos);
  REQUIRE(text.find('\r') == std::string::npos);
  const auto json = nlohmann::json::parse(jobs_json(answer));
  REQUIRE(json["jobs"][0]["job"] == "train");
  REQUIRE(json["jobs"][0]["state"] == "running");
  REQUIRE(json["nodes"][0]["ranks"] == 8);
  REQUIRE_FALSE(json.contains("trouble"));
}

TEST_CASE("that a coordinator can record nothing comes first") {
  net::QueryAnswer answer;
  answer.over.problem = "its state log cannot be written; is the disk full?";
  REQUIRE_THAT(jobs_text(answer), Catch::StartsWith("nothing is acknowledged: its state log"));
}
