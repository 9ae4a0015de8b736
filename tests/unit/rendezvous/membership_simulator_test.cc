// SPDX-License-Identifier: Apache-2.0
// A million random events against one round after the other (round_simulation.h), with the promises checked
// after each. The seed is printed; MUSTER_SEED repeats a run.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/round_simulation.h"

using namespace muster;
using namespace muster::membership;
using namespace std::chrono_literals;

TEST_CASE("a million random events break no promise of the round") {
  const char* given = std::getenv("MUSTER_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  [[maybe_unused]] const auto start = SteadyClock::now();
  int events = 0;
  int jobs = 0;
  SimulationCounts counts;
  std::map<Cause::Kind, int> endings;
  // Sanitizers make it several times slower; there a bound keeps the test short.
#ifdef MUSTER_SANITIZED
  const auto enough = [&] { return SteadyClock::now() - start >= 15s; };
#else
  const auto enough = [] { return false; };
#endif
  while (events < 1'000'000 && !enough()) {
    RoundSimulation simulation(random);
    ++jobs;
    int step = 0;
    try {
      for (bool going = true; going && step < 5000; ++step) going = simulation.step();
    } catch (const std::exception& error) {
      FAIL("seed " << seed << ", job " << jobs << ", step " << step << ": " << error.what());
    }
    events += step;
    counts += simulation.counts();
    ++endings[simulation.ending()];
  }
  std::cout << events << " events, " << jobs << " jobs, " << counts.worlds << " worlds, " << counts.swaps
            << " nodes replaced or dropped, " << counts.growths << " growths, " << counts.restarts
            << " coordinators begun anew, " << counts.told_again << " worlds told again, " << counts.unhealthy
            << " unhealthy nodes, " << counts.spared << " nodes spared, " << counts.stores_lost
            << " stores lost\n";
  for (const auto& [kind, count] : endings) std::cout << "  " << count << " x " << to_string(kind) << '\n';
  REQUIRE(counts.worlds > jobs / 4);
  REQUIRE(counts.swaps > 0);
  REQUIRE(counts.told_again > 0);
  REQUIRE(counts.restarts > 0);
  REQUIRE(counts.growths > 0);
  REQUIRE(counts.unhealthy > 0);
  REQUIRE(counts.spared > 0);
  REQUIRE(counts.stores_lost > 0);
  REQUIRE(endings.size() >= 4);
}
