// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>

#include "rendezvous/coordinator/membership.h"

namespace muster::membership {
namespace {

using Nodes = std::vector<const Node*>;

// Every node with an order at that place where there are enough nodes before it, else in sequence.
Nodes interleave(const Nodes& by_arrival) {
  Nodes ordered;
  Nodes free;
  for (const Node* node : by_arrival) (node->request.order ? ordered : free).push_back(node);
  std::ranges::stable_sort(ordered, {}, [](const Node* node) { return *node->request.order; });
  Nodes out;
  out.reserve(by_arrival.size());
  auto next_ordered = ordered.begin();
  auto next_free = free.begin();
  while (out.size() < by_arrival.size()) {
    const bool take_ordered =
        next_ordered != ordered.end() &&
        (next_free == free.end() || *(*next_ordered)->request.order <= static_cast<int>(out.size()));
    out.push_back(take_ordered ? *next_ordered++ : *next_free++);
  }
  return out;
}

// Places of the last world, nullptr where its node is gone; takes survivors out of `candidates`.
Nodes survivors(const World& last, Nodes& candidates) {
  std::unordered_map<NodeId, const Node*, NodeIdHash> by_id;
  by_id.reserve(candidates.size());
  for (const Node* node : candidates) by_id.emplace(node->request.id, node);
  Nodes out;
  out.reserve(last.slots.size());
  for (const Slot& slot : last.slots) {
    const auto found = by_id.find(slot.node);
    out.push_back(found == by_id.end() ? nullptr : found->second);
    if (found != by_id.end()) by_id.erase(found);
  }
  std::erase_if(candidates, [&](const Node* node) { return !by_id.contains(node->request.id); });
  return out;
}

void fill_holes(const World& last, Nodes& places, Nodes& newcomers, std::size_t max_nodes) {
  std::size_t used = static_cast<std::size_t>(std::ranges::count_if(places, [](auto* p) { return p; }));
  const auto pass = [&](auto fits) {
    for (std::size_t i = 0; i < places.size() && used < max_nodes && !newcomers.empty(); ++i) {
      if (places[i] != nullptr) continue;
      const auto found =
          std::ranges::find_if(newcomers, [&](const Node* node) { return fits(last.slots[i], *node); });
      if (found == newcomers.end()) continue;
      places[i] = *found;
      newcomers.erase(found);
      ++used;
    }
  };
  pass([](const Slot& slot, const Node& node) { return slot.order && node.request.order == slot.order; });
  pass([](const Slot& slot, const Node& node) {
    return machine_of(node.request) == slot.machine && node.request.wanted_ranks == slot.ranks;
  });
  pass([](const Slot& slot, const Node& node) { return node.request.wanted_ranks == slot.ranks; });
  pass([](const Slot&, const Node&) { return true; });
}

}  // namespace

World arrange(const World& last, std::vector<const Node*> candidates, int max_nodes) {
  const auto limit = static_cast<std::size_t>(max_nodes);
  std::ranges::sort(candidates, {}, &Node::arrival);
  Nodes places;
  if (last.slots.empty()) {
    if (candidates.size() > limit) candidates.resize(limit);
    places = interleave(candidates);
  } else {
    places = survivors(last, candidates);
    fill_holes(last, places, candidates, limit);
    std::erase(places, nullptr);
    if (places.size() + candidates.size() > limit) candidates.resize(limit - std::min(limit, places.size()));
    const Nodes appended = interleave(candidates);
    places.insert(places.end(), appended.begin(), appended.end());
  }

  World out;
  out.slots.reserve(places.size());
  std::map<std::string, int> role_sizes;
  for (const Node* node : places) {
    const Request& request = node->request;
    int& role_size = role_sizes[request.role];
    out.slots.push_back({request.id, request.host, machine_of(request), request.role, request.order,
                         request.wanted_ranks, out.world_size, role_size, 0});
    out.world_size += request.wanted_ranks;
    role_size += request.wanted_ranks;
  }
  for (Slot& slot : out.slots) slot.role_world_size = role_sizes[slot.role];
  return out;
}

}  // namespace muster::membership
