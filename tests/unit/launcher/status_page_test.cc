// SPDX-License-Identifier: Apache-2.0
// The status page without its sockets: the JSON of /api/status, and who may see it.
#include "launcher/telemetry/status_page.h"

#include <nlohmann/json.hpp>

#include "launcher/text/node_message.h"
#include "tests/support/catch.h"

namespace muster::launcher {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

const Instant kNow = Instant{} + 1h;

GpuReading gpu_of(int index, const std::string& name, double util_percent) {
  GpuReading out;
  out.gpu.index = index;
  out.gpu.name = name;
  out.figures.util_percent = util_percent;
  return out;
}

NodeStatus node_of(int node, int ranks) {
  NodeStatus out;
  out.node = node;
  out.host = "host-" + std::to_string(node);
  out.state = "running";
  for (int i = 0; i < ranks; ++i) {
    RankStatus& rank = out.ranks.emplace_back();
    rank.rank = node * ranks + i;
    rank.local_rank = i;
    rank.pid = 100 + i;
    rank.state = static_cast<int>(WorkerState::kRunning);
    rank.step = 140;
    rank.loss = 0.123456789;
    rank.pace = {60, node == 1 && i == 0 ? 0 : 30, "forward", 0.2};
  }
  out.events.push_back({1, 100.0 + node, "running", -1, "<script>"});
  return out;
}

struct Example {
  Job job;
  AgentStatus status;
  NodesSeen nodes;

  Example() {
    job.run_id = "job-1";
    job.command.title = "train.py";
    status.assignment.emplace();
    status.assignment->world_size = 8;
    status.assignment->group_world_size = 2;
    nodes[0] = {node_of(0, 4), kNow};
    nodes[1] = {node_of(1, 4), kNow - 2s};
  }
  [[nodiscard]] std::string json(bool with_times = true) const {
    return job_status_json({job, status, "0.1.0", 50, 110, kNow}, nodes, with_times);
  }
};

}  // namespace

TEST_CASE("the state of the job has a column for each field, with null for what is not known") {
  Example t;
  t.nodes[0].status.gpus.push_back(gpu_of(3, "", 55));
  const Json out = Json::parse(t.json());
  CHECK(out["job"]["world_size"] == 8);
  CHECK((out["job"]["began"] == 50 && out["job"]["now"] == 110));
  for (const auto& [name, column] : out["ranks"].items()) {
    INFO(name);
    CHECK(column.size() == 8);
  }
  CHECK(out["ranks"]["node"] == Json({0, 0, 0, 0, 1, 1, 1, 1}));
  CHECK((out["ranks"]["loss"][0] == 0.123457 && out["ranks"]["throughput"][0].is_null()));
  CHECK((out["ranks"]["straggler"][4] == true && out["ranks"]["straggler"][0] == false));
  CHECK((out["straggler"]["rank"] == 4 && out["straggler"]["host"] == "host-1"));
  CHECK((out["nodes"][1]["age_s"] == 2 && out["nodes"][1]["status_address"].is_null()));
  const Json& gpu = out["nodes"][0]["gpus"][0];
  CHECK((gpu["gpu"] == 3 && gpu["util_percent"] == 55 && gpu["power_w"].is_null() && gpu["name"].is_null()));
  CHECK((out["events"].size() == 2 && out["events"][1]["text"] == "<script>"));
  CHECK((out["failure"].is_null() && out["hang"].is_null()));

  t.nodes.erase(1);  // a node that was not heard of
  const Json less = Json::parse(t.json());
  CHECK((less["ranks"]["rank"][7] == 7 && less["ranks"]["state"][7].is_null() &&
         less["ranks"]["node"][7].is_null()));
}

TEST_CASE("without times the state differs only if something happened") {
  Example t;
  const std::string before = t.json(false);
  t.nodes[0].status.ranks[0].idle_s = 5;
  t.nodes[1].at = kNow - 1s;
  CHECK(t.json(false) == before);
  t.nodes[0].status.ranks[0].step = 141;
  CHECK(t.json(false) != before);
}

TEST_CASE("of 4,096 ranks the state stays below a megabyte") {
  Example t;
  t.status.assignment->world_size = 4096;
  t.status.assignment->group_world_size = 512;
  for (int node = 0; node < 512; ++node) t.nodes[node] = {node_of(node, 8), kNow};
  const std::string text = t.json();
  CHECK(Json::parse(text)["ranks"]["rank"].size() == 4096);
  CHECK(text.size() < 1 << 20);
}

TEST_CASE("a node's status arrives as it was sent, and one that does not fit into the world is dropped") {
  NodeStatus sent = node_of(1, 4);
  sent.host = "host\x1b[31m";
  sent.gpus.push_back(gpu_of(0, "H100", 99.5));
  sent.gpus[0].ranks = {7, 4};
  const auto read = from_node_message<NodeStatus>(to_node_message(sent), "a node's status");
  REQUIRE(read);
  CHECK(read->host.find('\x1b') == std::string::npos);
  CHECK((read->ranks[3].rank == 7 && read->ranks[3].loss == 0.123456789 &&
         read->gpus[0].figures.util_percent == 99.5));
  CHECK(read->gpus[0].ranks == std::vector{7, 4});
  Assignment place;
  place.world_size = 8;
  place.group_world_size = 2;
  CHECK(makes_sense(*read, 1, place));
  CHECK_FALSE(makes_sense(*read, 0, place));
  for (const auto& change :
       {+[](RankStatus& rank) { rank.rank = 8; }, +[](RankStatus& rank) { rank.rank = -1; },
        +[](RankStatus& rank) { rank.state = 77; }, +[](RankStatus& rank) { rank.pace.waiting = 61; }}) {
    NodeStatus wrong = *read;
    change(wrong.ranks[2]);
    CHECK_FALSE(makes_sense(wrong, 1, place));
  }
  CHECK_FALSE(from_node_message<NodeStatus>(to_node_message(sent).substr(0, 40), "a node's status"));
}

TEST_CASE("the page is served under this host's names only") {
  const std::vector<std::string> names = {"node7.cluster", "node7"};
  for (const char* host : {"localhost:9200", "127.0.0.1:9200", "[::1]:9200", "NODE7:9200", "node7.cluster"})
    CHECK(net::is_own_host(host, "127.0.0.1:9200", names));
  for (const char* host : {"", "evil.example:9200", "127.0.0.1.evil.example", "10.0.0.7:9200", "node7.evil"})
    CHECK_FALSE(net::is_own_host(host, "127.0.0.1:9200", names));
  CHECK(net::is_own_host("10.0.0.7:9200", "[::]:9200", names));
  CHECK(net::is_own_host("10.0.0.7:9200", "10.0.0.7:9200", names));
  CHECK_FALSE(net::is_own_host("10.0.0.8:9200", "10.0.0.7:9200", names));
}

TEST_CASE("the token follows from the secret and the run id") {
  const auto secret = auth::Secret::from_bytes("0123456789abcdef");
  REQUIRE(secret);
  const std::string token = net::page_token(*secret, "job-1");
  CHECK(token.size() == 64);
  CHECK(token == net::page_token(*secret, "job-1"));
  CHECK(token != net::page_token(*secret, "job-2"));
}

TEST_CASE("the page is one file below 100 KB that fetches nothing and sets no markup") {
  const std::string_view page = kStatusPageHtml;
  CHECK(page.size() < 100'000);
  CHECK(page.find("<script nonce=\"{nonce}\">") != std::string::npos);
  for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                           "src=", "<link", "@import", "url("})
    CHECK(page.find(word) == std::string::npos);
}

TEST_CASE("a value of a query is decoded") {
  CHECK(net::query_value("rank=3&lines=10", "lines") == "10");
  CHECK(net::query_value("token=a%2Fb+c%", "token") == "a/b c%");
  CHECK(net::query_value("tokens=1&token=", "token") == "");
  CHECK_FALSE(net::query_value("rank", "rank"));
  CHECK_FALSE(net::query_value("", "rank"));
}

}  // namespace muster::launcher
