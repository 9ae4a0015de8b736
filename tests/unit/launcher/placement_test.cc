// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/placement.h"

#include "launcher/text/rank_ranges.h"
#include "rendezvous/base/text.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"
#include "tests/support/synthetic_topology.h"

using namespace muster;
using namespace muster::launcher;

namespace {

// Two sockets of two NUMA nodes, each with two caches of four cores of two threads: CPUs 0-63.
constexpr const char* kServer = "pack:2 numa:2 l3:2 core:4 pu:2";
const CpuSet kAll;

Topology machine(const CpuSet& mask = kAll, const char* description = kServer) {
  auto out = test::synthetic_topology(description, mask);
  REQUIRE_OK(out);
  return *out;
}

/// GPUs at these NUMA nodes; -1: unknown.
std::vector<Gpu> gpus_at(const std::vector<int>& nodes) {
  std::vector<Gpu> out;
  for (const int node : nodes) {
    Gpu gpu;
    gpu.index = static_cast<int>(out.size());
    gpu.uuid = "GPU-" + std::to_string(out.size());
    gpu.numa_node = node;
    out.push_back(gpu);
  }
  return out;
}

std::vector<RankPlacement> place(const Topology& topology, const std::vector<Gpu>& gpus, int ranks, Bind bind,
                                 bool oversubscribe = false) {
  PlacementRequest request;
  request.ranks = ranks;
  request.bind = bind;
  request.bind_text = "--bind=it";
  request.oversubscribe = oversubscribe;
  auto out = place_ranks(topology, gpus, visible_devices(gpus, {}), request);
  REQUIRE_OK(out);
  return *out;
}

using Texts = std::vector<std::string>;

Texts cpus(const std::vector<RankPlacement>& ranks) {
  Texts out;
  for (const RankPlacement& rank : ranks) out.push_back(to_ranges(rank.cpus));
  return out;
}

std::vector<int> threads(const std::vector<RankPlacement>& ranks) {
  std::vector<int> out;
  for (const RankPlacement& rank : ranks) out.push_back(rank.threads);
  return out;
}

const std::vector<int> kEightGpus{0, 0, 1, 1, 2, 2, 3, 3};

}  // namespace

TEST_CASE("ranks go to the NUMA node, socket or share of cores that is nearest to their GPU") {
  const auto gpus = gpus_at({3, 0});
  REQUIRE(cpus(place(machine(), gpus, 2, Bind::kNuma)) == Texts{"48-63", "0-15"});
  REQUIRE(cpus(place(machine(), gpus, 2, Bind::kSocket)) == Texts{"32-63", "0-31"});
  const auto eight = place(machine(), gpus_at(kEightGpus), 8, Bind::kCore);
  REQUIRE(cpus(eight) == Texts{"0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63"});
  REQUIRE(threads(eight) == std::vector<int>(8, 4));
  for (int i = 0; i < 8; ++i) {
    const RankPlacement& rank = eight[static_cast<std::size_t>(i)];
    REQUIRE_FALSE(rank.binding.cpus.empty());
    REQUIRE(rank.numa_node == i / 2);
    REQUIRE(rank.logical == i);
    REQUIRE(rank.gpu->uuid == "GPU-" + std::to_string(i));
    REQUIRE(rank.binding.cpus == to_mask(rank.cpus));
    REQUIRE(rank.binding.memory_nodes == std::vector<unsigned long>{1UL << (i / 2)});
    REQUIRE(rank.note.empty());
  }
}

TEST_CASE("several NUMA nodes in one binding leave memory to the kernel, which takes the asking CPU's") {
  REQUIRE(place(machine(), gpus_at({0}), 1, Bind::kSocket)[0].binding.memory_nodes.empty());
  Topology container = machine();
  container.memory_policy = false;
  const auto rank = place(container, gpus_at({0}), 1, Bind::kNuma)[0];
  REQUIRE(rank.binding.memory_nodes.empty());
  REQUIRE_FALSE(rank.binding.cpus.empty());
}

TEST_CASE("ranks without a GPU are spread over what the mask has left") {
  REQUIRE(cpus(place(machine(), {}, 4, Bind::kNuma)) == Texts{"0-15", "16-31", "32-47", "48-63"});
  REQUIRE(cpus(place(machine(), {}, 2, Bind::kSocket)) == Texts{"0-31", "32-63"});
  // One core of node 0, all of node 1: no rank is squeezed onto the one core.
  const auto uneven = place(machine(*parse_ranges("0-1,16-31")), {}, 4, Bind::kCore);
  REQUIRE(cpus(uneven) == Texts{"16-19", "20-23", "24-27", "28-31"});
  // As many ranks as cores always fit, each on its own.
  for (const char* mask : {"0-63", "0-1,16-31", "0-9,62-63", "4-7,18-21,33"}) {
    const Topology topology = machine(*parse_ranges(mask));
    const int cores = static_cast<int>(topology.cores.size());
    CpuSet seen;
    for (const RankPlacement& rank : place(topology, {}, cores, Bind::kCore)) {
      REQUIRE(intersection(seen, rank.cpus).empty());
      seen = sorted_union(seen, rank.cpus);
      REQUIRE(rank.cores == 1);
    }
    REQUIRE(seen == *parse_ranges(mask));
  }
}

TEST_CASE("cores that do not divide evenly go to the first ranks, and hardware threads stay together") {
  const auto ranks = place(machine(kAll, "numa:1 core:7 pu:2"), {}, 3, Bind::kCore);
  REQUIRE(cpus(ranks) == Texts{"0-5", "6-9", "10-13"});
  REQUIRE(threads(ranks) == std::vector<int>{3, 2, 2});
}

TEST_CASE(
    "a rank whose mask forbids the NUMA node of its GPU goes where it would without one, and that is said") {
  const auto ranks = place(machine(*parse_ranges("16-19,60-63")), gpus_at({0, 2}), 2, Bind::kNuma);
  REQUIRE(cpus(ranks) == Texts{"16-19", "60-63"});
  REQUIRE(ranks[0].numa_node == 1);
  REQUIRE_THAT(ranks[0].note, Catch::Contains("GPU 0 is at NUMA node 0, of which no CPU may be used"));
}

TEST_CASE("a GPU whose NUMA node nobody knows counts as any, and that is said where there are several") {
  const auto ranks = place(machine(), gpus_at({-1, -1}), 2, Bind::kNuma);
  REQUIRE(cpus(ranks) == Texts{"16-31", "48-63"});
  REQUIRE_THAT(ranks[1].note, Catch::Contains("NUMA node of GPU 1 is unknown"));
  const auto one = place(machine(kAll, "numa:1 core:4 pu:1"), gpus_at({-1, -1}), 2, Bind::kNuma);
  REQUIRE(one[0].note.empty());
}

TEST_CASE("more ranks than cores at a NUMA node are refused unless cores may be shared") {
  PlacementRequest request;
  request.ranks = 3;
  request.bind = Bind::kCore;
  request.bind_text = "--bind=core";
  const Topology small = machine(kAll, "numa:2 core:2 pu:1");
  const auto gpus = gpus_at({1, 1, 1});
  const auto refused = place_ranks(small, gpus, visible_devices(gpus, {}), request);
  REQUIRE_FALSE(refused);
  REQUIRE_THAT(refused.error().message, Catch::Contains("--bind=core: NUMA node 1 has 2 cores") &&
                                            Catch::Contains("for 3 ranks") && Catch::Contains("--bind=numa"));
  REQUIRE(cpus(place(small, gpus, 3, Bind::kCore, true)) == Texts{"2", "3", "2"});
}

TEST_CASE("torchrun's modes give the CPU sets that it gives") {
  // exclusive divides by the visible GPUs at the node, used or not: two jobs do not meet.
  REQUIRE(cpus(place(machine(), gpus_at(kEightGpus), 1, Bind::kExclusive)) == Texts{"0-7"});
  REQUIRE(cpus(place(machine(), gpus_at(kEightGpus), 1, Bind::kCore)) == Texts{"0-15"});
  REQUIRE(cpus(place(machine(), gpus_at({1, 1, 1}), 3, Bind::kExclusive)) ==
          Texts{"16-21", "22-27", "28-31"});
  REQUIRE(cpus(place(machine(), gpus_at({2, 2, 2}), 3, Bind::kCoreComplex)) ==
          Texts{"32-39", "40-47", "32-39"});
  // The larger group comes first, whatever its numbers.
  REQUIRE(cpus(place(machine(*parse_ranges("2-15")), gpus_at({0, 0}), 2, Bind::kCoreComplex)) ==
          Texts{"8-15", "2-7"});
}

TEST_CASE("without a binding a rank may use the whole mask, and its threads are its share of the cores") {
  const auto ranks = place(machine(*parse_ranges("0-15")), gpus_at(kEightGpus), 3, Bind::kNone);
  REQUIRE(cpus(ranks) == Texts{"0-15", "0-15", "0-15"});
  REQUIRE(threads(ranks) == std::vector<int>{2, 2, 2});
  REQUIRE(ranks[0].binding.cpus.empty());
  REQUIRE(ranks[0].binding == Binding{});
  REQUIRE(ranks[2].numa_node == 1);
  REQUIRE(threads(place(machine(), {}, 100, Bind::kNone))[0] == 1);
}

TEST_CASE("threads are no more than the container's CPU time keeps busy") {
  PlacementRequest request;
  request.ranks = 2;
  request.bind = Bind::kNuma;
  request.cpu_quota = 6;
  REQUIRE(threads(*place_ranks(machine(), {}, {}, request)) == std::vector<int>{3, 3});
}

TEST_CASE("ranks beyond the GPUs have none, unless the GPUs are shared in turn") {
  const auto ranks = place(machine(), gpus_at({0, 1}), 3, Bind::kNone);
  REQUIRE_FALSE(ranks[2].gpu);
  REQUIRE(ranks[2].logical == -1);
  const auto shared = place(machine(), gpus_at({0, 1}), 4, Bind::kNone, true);
  REQUIRE(shared[2].gpu->index == 0);
  REQUIRE(shared[3].gpu->index == 1);
}

TEST_CASE("each binding has its names") {
  REQUIRE(parse_bind("core", false) == Bind::kCore);
  REQUIRE(parse_bind("none", false) == Bind::kNone);
  REQUIRE(parse_bind("core-complex", true) == Bind::kCoreComplex);
  REQUIRE(parse_bind("node", true) == Bind::kNuma);
  REQUIRE_FALSE(parse_bind("numa", true));
  REQUIRE_FALSE(parse_bind("exclusive", false));
}
