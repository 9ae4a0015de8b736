// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/membership.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::membership;

namespace {

std::vector<Node> nodes(std::vector<Request> requests) {
  std::vector<Node> out;
  for (auto& request : requests) {
    Node node;
    node.arrival = out.size();
    node.request = std::move(request);
    out.push_back(std::move(node));
  }
  return out;
}

Request node(std::uint64_t id, int ranks = 2, std::optional<int> order = {}, std::string role = "default") {
  Request out;
  out.id = {0, id};
  out.host = "n" + std::to_string(id);
  out.wanted_ranks = ranks;
  out.order = order;
  out.role = std::move(role);
  return out;
}

World arranged(const World& last, const std::vector<Node>& from, int max_nodes) {
  std::vector<const Node*> candidates;
  for (const Node& each : from) candidates.push_back(&each);
  return arrange(last, candidates, max_nodes);
}

std::vector<std::uint64_t> ids(const World& world) {
  std::vector<std::uint64_t> out;
  for (const Slot& slot : world.slots) out.push_back(slot.node.low);
  return out;
}

using Ids = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("without orders the nodes are ranked as they joined") {
  const World world = arranged({}, nodes({node(7), node(3), node(5)}), 3);
  REQUIRE(ids(world) == Ids{7, 3, 5});
  REQUIRE(world.world_size == 6);
  REQUIRE(world.slots[2].base_rank == 4);
}

TEST_CASE("node ranks are honoured and the rest fills the places between") {
  REQUIRE(ids(arranged({}, nodes({node(7, 2, 2), node(3, 2, 0), node(5)}), 3)) == Ids{3, 5, 7});
  REQUIRE(ids(arranged({}, nodes({node(7, 2, 20), node(3, 2, 10)}), 3)) == Ids{3, 7});
  REQUIRE(ids(arranged({}, nodes({node(1), node(2), node(3, 2, 0)}), 3)) == Ids{3, 1, 2});
}

TEST_CASE("nodes may differ in ranks and roles") {
  const World world = arranged({}, nodes({node(1, 2, {}, "a"), node(2, 3, {}, "b"), node(3, 1, {}, "a")}), 3);
  REQUIRE(world.world_size == 6);
  REQUIRE(world.slots[1].base_rank == 2);
  REQUIRE(world.slots[2].base_rank == 5);
  REQUIRE(world.slots[2].role_base_rank == 2);
  REQUIRE(world.slots[2].role_world_size == 3);
  REQUIRE(world.slots[1].role_base_rank == 0);
  REQUIRE(world.slots[1].role_world_size == 3);
}

TEST_CASE("survivors keep their ranks and a spare takes the lost node's") {
  const World first = arranged({}, nodes({node(1), node(2), node(3)}), 3);
  const World second = arranged(first, nodes({node(9), node(3), node(1)}), 3);
  REQUIRE(ids(second) == Ids{1, 9, 3});
  REQUIRE(second.slots[1].base_rank == first.slots[1].base_rank);
}

TEST_CASE("of several spares the one with as many ranks is taken, so that no rank number moves") {
  const World first = arranged({}, nodes({node(1), node(2), node(3)}), 3);
  REQUIRE(ids(arranged(first, nodes({node(1), node(3), node(8, 4), node(9, 2)}), 3)) == Ids{1, 9, 3});
  REQUIRE(ids(arranged(first, nodes({node(1), node(3), node(8, 4)}), 3)) == Ids{1, 8, 3});
}

TEST_CASE("a node that comes back under its node rank or on its machine gets its place again") {
  const World first = arranged({}, nodes({node(1, 2, 0), node(2, 2, 1), node(3, 2, 2)}), 3);
  REQUIRE(ids(arranged(first, nodes({node(3, 2, 2), node(9, 2), node(8, 2, 1), node(1, 2, 0)}), 3)) ==
          Ids{1, 8, 3});
  const World other = arranged({}, nodes({node(1), node(2), node(3)}), 3);
  Request again = node(8);
  again.host = "n2";
  REQUIRE(ids(arranged(other, nodes({node(9), again, node(1)}), 3)) == Ids{1, 8, 9});
}

TEST_CASE("a smaller world closes up and keeps the order, and newcomers are appended") {
  const World first = arranged({}, nodes({node(1), node(2), node(3)}), 4);
  REQUIRE(ids(arranged(first, nodes({node(3), node(1)}), 4)) == Ids{1, 3});
  REQUIRE(ids(arranged(first, nodes({node(4), node(3), node(2), node(1)}), 4)) == Ids{1, 2, 3, 4});
}

TEST_CASE("survivors come before newcomers when there are too many") {
  const World first = arranged({}, nodes({node(1), node(2)}), 2);
  REQUIRE(ids(arranged(first, nodes({node(5), node(6), node(2), node(1)}), 2)) == Ids{1, 2});
  REQUIRE(ids(arranged({}, nodes({node(5), node(6), node(7)}), 2)) == Ids{5, 6});
}
