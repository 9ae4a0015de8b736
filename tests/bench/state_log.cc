// SPDX-License-Identifier: Apache-2.0
// Acknowledged sets per second (SET and PING, 24-byte key, 64-byte value) of musterd without and with
// --state-dir, at 1 and 32 connections, alternating. Usage: state_log_bench <directory on the disk to
// measure> [rounds] [seconds]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <poll.h>
#include <string>
#include <vector>

#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"

using namespace muster;

namespace {

double sets_per_second(std::uint16_t port, std::size_t connections, double seconds) {
  std::vector<std::unique_ptr<test::RawClient>> clients;
  std::vector<pollfd> entries;
  std::string request;
  for (std::size_t i = 0; i < connections; ++i) {
    clients.push_back(std::make_unique<test::RawClient>(test::RawClient::modern(port)));
    entries.push_back({clients.back()->fd(), POLLIN, 0});
  }
  wire::encode({.op = wire::Op::kSet, .key = "/benchmark/key/of/24/byt", .value = std::string(64, 'v')},
               request);
  wire::encode({.op = wire::Op::kPing, .number = 7}, request);
  for (auto& client : clients) client->send(request);
  const auto begin = SteadyClock::now();
  const auto end =
      begin + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
  std::size_t done = 0;
  while (SteadyClock::now() < end) {
    ::poll(entries.data(), entries.size(), 1000);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if ((entries[i].revents & POLLIN) == 0) continue;
      if (clients[i]->receive(4).size() != 4) std::exit(1);
      clients[i]->send(request);
      ++done;
    }
  }
  return static_cast<double>(done) / std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: state_log_bench <directory> [rounds] [seconds]\n");
    return 2;
  }
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 2;
  const std::string directory = std::string(argv[1]) + "/state_log_bench";
  std::map<std::pair<std::size_t, bool>, std::vector<double>> results;
  for (int round = 0; round < rounds; ++round) {
    for (const std::size_t connections : {1, 32}) {
      for (const bool kept : {false, true}) {
        std::filesystem::remove_all(directory);
        std::vector<std::string> arguments;
        if (kept) arguments = {"--state-dir", directory};
        const test::Musterd daemon = test::Musterd::listening(arguments);
        results[{connections, kept}].push_back(sets_per_second(daemon.port(), connections, seconds));
      }
    }
  }
  std::filesystem::remove_all(directory);
  for (auto& [what, figures] : results) {
    std::sort(figures.begin(), figures.end());
    std::printf("%2zu connections, %s: %8.0f acknowledged sets/s [%.0f, %.0f]\n", what.first,
                what.second ? "--state-dir" : "in memory  ", figures[figures.size() / 2], figures.front(),
                figures.back());
  }
  return 0;
}
