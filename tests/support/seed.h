// SPDX-License-Identifier: Apache-2.0
// seed(): of a test with random numbers. Printed, so that a failure tells it; MUSTER_SEED repeats a run.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>

namespace muster::test {

inline unsigned seed() {
  const char* given = std::getenv("MUSTER_SEED");
  const unsigned out =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
  std::printf("MUSTER_SEED=%u\n", out);
  std::fflush(stdout);
  return out;
}

}  // namespace muster::test
