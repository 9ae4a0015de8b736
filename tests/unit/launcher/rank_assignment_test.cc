// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/rank_assignment.h"

#include "launcher/job/outcome_text.h"
#include "launcher/join/roll_call.h"
#include "launcher/plan/program.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

RoleInfo node(int rank, std::string role, int workers, int nodes = 3) {
  return {std::move(role), rank, workers, nodes, 0, "host" + std::to_string(rank), "10.0.0.1:7"};
}

}  // namespace

TEST_CASE("ranks are contiguous per node, and roles are counted apart") {
  const std::vector<RoleInfo> nodes{node(0, "a", 2), node(1, "b", 1), node(2, "a", 3)};
  const auto ranges = assign_ranks(nodes);
  REQUIRE_OK(ranges);
  REQUIRE(*ranges == std::vector<RankRange>{{0, 6, 0, 5}, {2, 6, 0, 1}, {3, 6, 2, 5}});
}

TEST_CASE("nodes that disagree about the job are named") {
  const auto ranges = assign_ranks(std::vector<RoleInfo>{node(0, "a", 1), node(1, "a", 1, 4)});
  REQUIRE_FALSE(ranges);
  REQUIRE(ranges.error().message == "node 1 (host1) was started with --nnodes=4, node 0 with --nnodes=3");
}

TEST_CASE("nodes of a role run the same program, where they tell theirs") {
  std::vector<RoleInfo> nodes{node(0, "a", 1), node(1, "b", 1), node(2, "a", 1)};
  nodes[0].program = "train.py";
  nodes[1].program = "server.py";
  REQUIRE(assign_ranks(nodes));
  nodes[2].program = "eval.py";
  REQUIRE(assign_ranks(nodes).error().message ==
          "node 2 (host2) runs eval.py, and node 0 (host0) runs train.py: have two jobs met here? Then each "
          "needs its own --rdzv-id and --master-port; else give both the same --rdzv-id");
}

TEST_CASE("a program's short name says neither where it lies nor what it is told") {
  for (const auto& [title, name] :
       std::vector<std::pair<std::string, std::string>>{{"train.py", "train.py"},
                                                        {"/home/me/run 7/train.py", "train.py"},
                                                        {"package.train", "package.train"},
                                                        {"apps/trainer/", "trainer"},
                                                        {"/", "/"},
                                                        {".", "."}}) {
    Command command;
    command.title = title;
    command.arguments = {"python3", title, "--key=secret"};
    REQUIRE(short_name(command) == name);
  }
}

TEST_CASE("descriptions, assignments and outcomes survive their JSON") {
  RoleInfo info = node(1, "ro\"le", 8);
  info.program = "train.py";
  REQUIRE(role_info_from_json(to_json(info)) == info);
  const RankRange range{4, 16, 2, 8};
  REQUIRE(to_json(range) == "[4, 16, 2, 8]");
  REQUIRE(rank_range_from_json(to_json(range)) == range);
  REQUIRE(rank_range_from_json("[4,16,2,8]") == range);
  FailureNotice notice{1, "h", 3, 7, "rank 3 exited", true};
  notice.lost_node = 2;
  const AttemptOutcome failure = notice;
  REQUIRE(outcome_from_json(to_json(failure)) == failure);
  REQUIRE(outcome_from_json(to_json(AttemptOutcome(AllSucceeded{}))) == AttemptOutcome(AllSucceeded{}));
}

TEST_CASE("text that no agent writes is a protocol error") {
  for (const char* bad : {"", "x", "{}", "[1, 2]", "null", "{\"ok\": false}"}) {
    INFO(bad);
    REQUIRE_FALSE(role_info_from_json(bad));
    REQUIRE_FALSE(rank_range_from_json(bad));
    REQUIRE_FALSE(outcome_from_json(bad));
  }
}

TEST_CASE("a roll call asks for the first that is missing, also again where an agent has gone") {
  const auto info = [](int node) {
    RoleInfo out;
    out.node_rank = node;
    out.connection = "10.0.0.1:" + std::to_string(node);
    return out;
  };
  RollCall roll(4);
  REQUIRE(roll.missing() == 0);
  for (const int node : {1, 0, 3}) roll.came(node, info(node));
  REQUIRE(roll.missing() == 2);
  roll.gone("10.0.0.1:1");
  roll.gone("10.0.0.1:1");
  roll.gone("10.0.0.9:1");  // of nobody
  REQUIRE(roll.missing() == 1);
  roll.came(2, info(2));
  REQUIRE(roll.missing() == 1);
  RoleInfo other = info(1);
  other.connection = "10.0.0.7:1";
  roll.came(1, other);
  REQUIRE(roll.complete());
  const std::vector<RoleInfo> nodes = roll.take();
  REQUIRE(nodes == std::vector{info(0), other, info(2), info(3)});
}
