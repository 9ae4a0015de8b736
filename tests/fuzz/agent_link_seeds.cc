// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of fuzz_agent_link: what a store answers to its operations. Usage: agent_link_seeds
// <folder>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "rendezvous/store/session.h"
#include "tests/fuzz/agent_link_operations.h"

namespace {

using namespace muster;
using fuzz::AgentOperation;
using wire::Op;

// The requests of AgentLink, as its header says.
std::string request(AgentOperation operation) {
  const std::string_view key = "/k", waited = "/w";
  std::string out;
  switch (operation) {
    case AgentOperation::kSet:
      wire::encode({.op = Op::kSet, .key = key, .value = "v"}, out);
      break;
    case AgentOperation::kGet:
      wire::encode({.op = Op::kGet, .key = key}, out);
      break;
    case AgentOperation::kSetIfAbsent:
      wire::encode({.op = Op::kCompareSet, .key = key, .desired = "v"}, out);
      break;
    case AgentOperation::kAdd:
      wire::encode({.op = Op::kAdd, .key = "/n", .number = 2}, out);
      break;
    case AgentOperation::kRemove:
      wire::encode({.op = Op::kDeleteKey, .key = key}, out);
      break;
    case AgentOperation::kExists:
      wire::encode({.op = Op::kCheck, .items = {&key, 1}}, out);
      break;
    case AgentOperation::kWait:
      wire::encode({.op = Op::kWait, .items = {&waited, 1}}, out);
      break;
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: agent_link_seeds <folder>\n");
    return 2;
  }
  bool good = true;
  for (std::uint8_t choice = 0; choice < fuzz::kNumAgentOperations; ++choice) {
    StoreCore core;
    Session session(1, core, {});
    Effects effects;
    std::string out(1, static_cast<char>(choice));
    std::string hello;
    wire::encode({.op = Op::kValidate, .number = wire::kMagic}, hello);
    core.set("/w", "there", effects);
    for (const AgentOperation operation : fuzz::agent_operations(choice)) hello += request(operation);
    std::string_view input(hello);
    good = good && session.receive(input, out, effects) == Session::State::kNeedInput && input.empty();
    std::ofstream file(std::string(argv[1]) + "/answers" + std::to_string(choice), std::ios::binary);
    file.write(out.data(), static_cast<std::streamsize>(out.size()));
    good = good && file.good();
  }
  if (!good) std::fprintf(stderr, "agent_link_seeds: cannot write to %s\n", argv[1]);
  return good ? 0 : 1;
}
