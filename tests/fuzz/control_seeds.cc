// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of fuzz_control: jobs from their joins to their end. Usage: control_seeds <folder>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "rendezvous/protocol/control.h"
#include "rendezvous/store/wire.h"

int main(int argc, char** argv) {
  using namespace muster::control;
  if (argc != 2) {
    std::fprintf(stderr, "usage: control_seeds <folder>\n");
    return 2;
  }
  bool good = true;
  constexpr auto kRelayed = muster::wire::Generation::kRelayed;
  std::string set, wait, cancel;
  const std::string_view key = "/k";
  encode({.op = muster::wire::Op::kSet, .key = key, .value = "v"}, set, kRelayed);
  encode({.op = muster::wire::Op::kWait, .items = {&key, 1}}, wait, kRelayed);
  encode({.op = muster::wire::Op::kCancelWait}, cancel, kRelayed);
  for (int nodes = 1; nodes <= 3; ++nodes) {
    std::string bytes("\x07\x01");
    for (int node = 0; node < 4; ++node) {
      Join join;
      join.request.id = {1, static_cast<std::uint64_t>(node)};
      join.request.host = "n" + std::to_string(node);
      join.request.addresses = {"10.0.0.1"};
      if (nodes == 2) join.request.order = node;
      if (nodes == 3) join.resume = node;
      if (node == 3) join.request.unhealthy = "a full disk";
      join.request.program = node == 2 ? "b.py" : "a.py";
      join.age = muster::Millis(1000 * node);
      join.settings.min_nodes = 1;
      join.settings.max_nodes = nodes;
      join.settings.max_restarts = 1;
      join.settings.max_without_progress = nodes - 1;
      join.settings.grow_at_safe_point = nodes == 3;
      encode(Message(join), bytes);
    }
    const std::vector<Message> rest = {Heartbeat{},
                                       Query{"a", "", 0},
                                       WorkerFailed{0, 1, 9, true, nodes == 2, "killed", {2, 140}},
                                       Ready{0, 4711, {2, 141}},
                                       SafePoint{1},
                                       Finished{1},
                                       Report{1, "n1", 0, "x"},
                                       Leave{"done"},
                                       Stop{1, "enough", true},
                                       Start{},
                                       Challenge{},
                                       Proof{},
                                       Welcome{},
                                       Refused{},
                                       Assignment{},
                                       Waiting{},
                                       GenerationOver{},
                                       Closed{},
                                       StoreAttach{1, 0, 0},
                                       StoreOpen{1, 0},
                                       StoreOpen{2, 0},
                                       StoreRequest{1, 1, 0, false, set},
                                       StoreRequest{2, 1, 0, false, wait},
                                       StoreRequest{2, 2, 0, false, cancel},
                                       StoreRequest{1, 2, 0, true, set.substr(0, 3)},
                                       StoreRequest{1, 2, 0, false, set.substr(3)},
                                       StoreAnswer{2, 1, false, ""},
                                       StoreClose{1, ""},
                                       StoreAttach{1, 1, 1},
                                       StoreOpen{2, 1},
                                       StoreAttached{},
                                       StoreRefused{},
                                       Clock{1, 0, 0},
                                       SafePointPassed{1},
                                       Hang{7, Hang::Kind::kSnapshot, 2, "host-a", 3, "{}"},
                                       StopWorkers{7, 3},
                                       Status{7, Status::Kind::kNode, {}, "host-a", 3, "{}"},
                                       Notice{"x"},
                                       Query{},
                                       Query{"a", "", 1},
                                       JobState{},
                                       NodeState{},
                                       QueryEnd{}};
    for (const Message& message : rest) encode(message, bytes);
    std::ofstream file(std::string(argv[1]) + "/job" + std::to_string(nodes), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    good = good && file.good();
  }
  if (!good) std::fprintf(stderr, "control_seeds: cannot write to %s\n", argv[1]);
  return good ? 0 : 1;
}
