// SPDX-License-Identifier: Apache-2.0
// What a world promises to the nodes of the one before it, for the simulator. A broken promise is an
// exception that names it.
#pragma once

#include <cstddef>
#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include "rendezvous/membership.h"

#define HOLDS(condition)                                                                          \
  do {                                                                                            \
    if (!(condition)) throw std::runtime_error(fmt::format("line {}: {}", __LINE__, #condition)); \
  } while (false)

namespace muster::test {

/// Survivors keep their order, and their ranks where the world has not shrunk. Returns how many nodes are
/// gone.
inline int check_survivors(const membership::World& before, const membership::World& world) {
  std::map<membership::NodeId, std::size_t> place;
  for (std::size_t i = 0; i < world.slots.size(); ++i) place[world.slots[i].node] = i;
  int gone = 0;
  bool same_sizes = true;  // of the places in front
  bool first = true;
  std::size_t last = 0;
  for (std::size_t i = 0; i < before.slots.size(); ++i) {
    const auto found = place.find(before.slots[i].node);
    if (found != place.end()) {
      HOLDS(first || found->second > last);
      first = false;
      last = found->second;
      if (world.slots.size() >= before.slots.size()) {
        HOLDS(found->second == i);
        if (same_sizes) HOLDS(world.slots[i].base_rank == before.slots[i].base_rank);
      }
    } else {
      ++gone;
    }
    if (i >= world.slots.size() || world.slots[i].ranks != before.slots[i].ranks) same_sizes = false;
  }
  return gone;
}

}  // namespace muster::test
