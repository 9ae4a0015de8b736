// SPDX-License-Identifier: Apache-2.0
// What somebody who looks into a coordinator is told of its jobs.
#include <set>
#include <string>

#include <fmt/format.h>

#include "rendezvous/status/daemon_metrics.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/jobs_table.h"

using namespace muster;
using namespace std::chrono_literals;
using control::JobState;
using control::NodeState;

namespace {

struct Answer {
  std::vector<JobState> jobs;
  std::vector<NodeState> nodes;
  control::QueryEnd over;
};

Answer ask(
    const Table& t, const control::Query& question,
    const std::function<bool(std::string_view)>& may_see = [](auto) { return true; }) {
  Answer out;
  for (const control::Message& each : t.jobs.answer(question, may_see, t.now, out.over)) {
    if (const auto* job = std::get_if<JobState>(&each)) out.jobs.push_back(*job);
    if (const auto* node = std::get_if<NodeState>(&each)) out.nodes.push_back(*node);
  }
  return out;
}

const NodeState& node(const Answer& answer, const std::string& host) {
  const auto found = std::find_if(answer.nodes.begin(), answer.nodes.end(),
                                  [&](const NodeState& each) { return each.host == host; });
  REQUIRE(found != answer.nodes.end());
  return *found;
}

}  // namespace

TEST_CASE("of a gathering somebody who looks in learns who is there and what is waited for") {
  Table t;
  t.join(1, "a", 1, 3);
  t.join(2, "a", 2, 3, "/tmp is full");
  t.now += 5s;
  const Answer answer = ask(t, {"a", {}, 0});
  REQUIRE(answer.jobs.size() == 1);
  const JobState& job = answer.jobs[0];
  REQUIRE(job.phase == JobState::Phase::kGathering);
  REQUIRE(job.generation == -1);
  REQUIRE(job.num_present == 1);
  REQUIRE(job.num_unhealthy == 1);
  REQUIRE(job.max_nodes == 3);
  REQUIRE(job.age_ms == 5000);
  REQUIRE(job.text == "1/3 nodes; n2 is unhealthy: /tmp is full");
  REQUIRE(answer.nodes.size() == 2);
  REQUIRE(node(answer, "n1").state == NodeState::State::kWaiting);
  REQUIRE(node(answer, "n1").text.empty());
  REQUIRE(node(answer, "n1").heard_ms == 5000);
  REQUIRE(node(answer, "n1").address == "127.0.0.1");
  REQUIRE(node(answer, "n2").state == NodeState::State::kUnhealthy);
  REQUIRE(node(answer, "n2").text == "is unhealthy: /tmp is full");
}

TEST_CASE("of a running job somebody who looks in learns its members, its spares and its first node") {
  Table t;
  t.spares = 1;
  t.join(1, "a", 1, 2);
  t.join(2, "a", 2, 2);
  t.join(3, "a", 3, 2);
  t.join(4, "a", 4, 2);
  t.jobs.receive(2, control::Finished{0}, t.now);
  const Answer answer = ask(t, {"a", {}, 0});
  REQUIRE(answer.jobs.at(0).phase == JobState::Phase::kRunning);
  REQUIRE(answer.jobs[0].num_present == 4);
  REQUIRE(answer.jobs[0].num_outside == 2);
  REQUIRE(answer.jobs[0].spares == 1);
  REQUIRE(answer.jobs[0].num_members == 2);
  REQUIRE(answer.jobs[0].world_size == 2);
  REQUIRE(answer.jobs[0].first_host == "n1");
  REQUIRE(node(answer, "n1").state == NodeState::State::kMember);
  REQUIRE(node(answer, "n1").group_rank == 0);
  REQUIRE(node(answer, "n2").state == NodeState::State::kFinished);
  REQUIRE(node(answer, "n2").base_rank == 1);
  REQUIRE(node(answer, "n3").state == NodeState::State::kWaiting);
  REQUIRE(node(answer, "n3").text == "spare 1 of 1; 2 nodes run generation 0");
  REQUIRE(node(answer, "n4").text.find("all places of the job are taken") == 0);
}

TEST_CASE("between two generations the nodes that stop their workers are told from those that are ready") {
  Table t;
  t.join(1, "a", 1, 2);
  t.join(2, "a", 2, 2);
  t.jobs.receive(2, control::WorkerFailed{0, 1, 9, true, false, "killed", {2, 140}}, t.now);
  t.jobs.receive(1, control::Ready{0, 1, {2, 139}}, t.now);
  const Answer answer = ask(t, {"a", {}, 0});
  REQUIRE(answer.jobs.at(0).phase == JobState::Phase::kRestarting);
  REQUIRE(answer.jobs[0].restarts_used == 1);
  REQUIRE(answer.jobs[0].max_restarts == 1);
  REQUIRE(answer.jobs[0].epoch == 2);
  REQUIRE(answer.jobs[0].step == 140);
  REQUIRE(node(answer, "n1").state == NodeState::State::kWaiting);
  REQUIRE(node(answer, "n2").state == NodeState::State::kStopping);
  REQUIRE(node(answer, "n2").text == "is stopping its workers");
}

TEST_CASE("a job that is kept shows how it ended, who was part of it, and until when") {
  JobsOptions options;
  options.keep = 60s;
  Table t(options);
  t.join(1, "a", 1, 1);
  t.jobs.receive(1, control::WorkerFailed{0, 0, 7, false, false, "rank 0 exited with code 7"}, t.now);
  t.jobs.receive(1, control::Leave{"done"}, t.now);
  t.now += 20s;
  const Answer answer = ask(t, {"a", {}, 0});
  REQUIRE(answer.jobs.at(0).phase == JobState::Phase::kEnded);
  REQUIRE(answer.jobs[0].exit_code == 7);
  REQUIRE(answer.jobs[0].text == "a worker failed on n1: rank 0 exited with code 7");
  REQUIRE(answer.jobs[0].forgotten_ms == 40'000);
  REQUIRE(answer.nodes.size() == 1);
  REQUIRE(answer.nodes[0].state == NodeState::State::kGone);
  REQUIRE(answer.nodes[0].host == "n1");
  REQUIRE(answer.nodes[0].group_rank == 0);
  REQUIRE(answer.nodes[0].heard_ms == -1);
}

TEST_CASE("of the jobs that an asker may not see it learns nothing, not even how many there are") {
  Table t;
  t.join(1, "a", 1, 2);
  t.join(2, "b", 1, 2);
  const auto only_a = [](std::string_view job) { return job == "a"; };
  REQUIRE(ask(t, {}).jobs.size() == 2);
  const Answer all = ask(t, {}, only_a);
  REQUIRE(all.jobs.size() == 1);
  REQUIRE(all.jobs[0].job == "a");
  REQUIRE(all.over.num_jobs == 1);
  const Answer other = ask(t, {"b", {}, 0}, only_a);
  REQUIRE(other.jobs.empty());
  REQUIRE(other.nodes.empty());
  REQUIRE(other.over.num_nodes == 0);
}

TEST_CASE("a job of thousands of nodes is told page by page, each node once") {
  Table t;
  constexpr int kNodes = 2500;
  for (int i = 1; i <= kNodes; ++i)
    t.join(static_cast<ConnectionId>(i), "a", static_cast<std::uint64_t>(i), kNodes);
  // Two of the world are gone for good, and still listed.
  t.jobs.receive(7, control::Leave{"gone"}, t.now);
  std::set<std::string> hosts;
  std::size_t pages = 0;
  control::Query question{"a", {}, 0};
  while (true) {
    const Answer answer = ask(t, question);
    ++pages;
    REQUIRE(answer.nodes.size() <= control::kMaxQueryEntries);
    REQUIRE(answer.over.num_nodes == kNodes);
    for (const NodeState& each : answer.nodes) REQUIRE(hosts.insert(each.host).second);
    if (!answer.over.more) break;
    question.from_number = answer.over.from_number;
    REQUIRE(pages < 10);
  }
  REQUIRE(pages == 3);
  REQUIRE(hosts.size() == kNodes);
}

TEST_CASE("more jobs than an answer holds are told page by page, in the order of their names") {
  JobsOptions options;
  options.max_jobs = 2000;
  Table t(options);
  constexpr std::size_t kJobs = 1500;
  for (std::size_t i = 0; i < kJobs; ++i) t.join(i + 1, "job" + std::to_string(i), 1, 2);
  const Answer first = ask(t, {});
  REQUIRE(first.jobs.size() == control::kMaxQueryEntries);
  REQUIRE(first.over.more);
  REQUIRE(first.over.num_jobs == kJobs);
  const Answer second = ask(t, {{}, first.over.after, 0});
  REQUIRE(second.jobs.size() == kJobs - control::kMaxQueryEntries);
  REQUIRE_FALSE(second.over.more);
  REQUIRE(first.jobs.back().job < second.jobs.front().job);
}

TEST_CASE("texts in an answer are cut, however long an agent made them") {
  Table t;
  t.join(1, "a", 1, 2, std::string(4000, 'x'));
  const Answer answer = ask(t, {"a", {}, 0});
  REQUIRE(answer.nodes.at(0).text.size() == control::kMaxQueryText);
  REQUIRE(answer.jobs.at(0).text.size() == control::kMaxQueryText);
}

TEST_CASE("a page on the loopback address of another host is neither linked nor a target") {
  Table t;
  ConnectionId connection = 1;
  for (const auto& [job, address] : {std::pair{"here", "127.0.0.1"}, {"there", "10.0.0.9"}}) {
    t.jobs.connected(++connection, job, address);
    control::Join message;
    message.request.id = {0, connection};
    message.request.host = job;
    message.request.status_address = "127.0.0.1:9200";
    message.settings.min_nodes = message.settings.max_nodes = 1;
    t.jobs.receive(connection, message, t.now);
  }
  const net::JobToken token = [](std::string_view job) { return fmt::format("of-{}", job); };
  const std::string page = net::jobs_page(t.jobs, token, "1", t.now);
  REQUIRE_THAT(page, Catch::Contains("<a href=\"http://127.0.0.1:9200/?token=of-here\"><bdi>here</bdi></a>"));
  REQUIRE_THAT(page, Catch::Contains("<td><bdi>there</bdi></td>"));
  const std::string targets = net::service_discovery(t.jobs, token);
  REQUIRE_THAT(targets, Catch::Contains("\"here\"") && !Catch::Contains("\"there\""));
  // Not to be seen, and open.
  REQUIRE(net::service_discovery(t.jobs, [](auto) { return std::nullopt; }) == "[]\n");
  REQUIRE_THAT(net::jobs_page(
                   t.jobs, [](auto) { return std::string(); }, "1", t.now),
               Catch::Contains("<a href=\"http://127.0.0.1:9200/\">"));
}
