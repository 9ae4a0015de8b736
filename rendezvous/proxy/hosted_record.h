// SPDX-License-Identifier: Apache-2.0
// What of a hosted store (hosted_stores.h) outlives the coordinator's process: its keys and queues, and of
// each connection of a worker the last request that changed something, with its answer. That is enough to go
// on where the connection was: an agent keeps what it was not answered, and sends it again; a change is not
// made twice, and what only reads or waits may be repeated. Values: made by HostedStores, written by
// journal.h, applied to a RecoveredState.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/protocol/world.h"
#include "rendezvous/store/store_core.h"

namespace muster {

/// A worker's connection: whose agent's, and its number there.
struct ConnectionName {
  membership::NodeId node;
  std::uint32_t number = 0;

  friend auto operator<=>(const ConnectionName&, const ConnectionName&) = default;
};

/// The last request of a connection that changed something.
struct LastApplied {
  std::uint64_t number = 0;            ///< of the request
  std::string answer;                  ///< to it; empty once the agent has it, or where there is none
  std::optional<std::string> barrier;  ///< its key: it waits there since, with no answer yet
};

struct SavedStore {
  std::string job;
  std::int64_t generation = 0;
  StoreCore core;
  std::map<ConnectionName, LastApplied> connections;
};

// Changes of hosted stores, which are named by their instance. Views are the caller's.

struct HostedBegan {
  std::uint64_t instance = 0;
  std::string_view job;
  std::int64_t generation = 0;
};
struct HostedEnded {
  std::uint64_t instance = 0;
};
struct HostedChanged {
  std::uint64_t instance = 0;
  StoreChange change;
};
/// The connection's last change is made. Belongs to the changes before it.
struct HostedDone {
  std::uint64_t instance = 0;
  ConnectionName name;
  LastApplied last;
};
/// The connection is no more, and nothing of it will be sent again.
struct HostedGone {
  std::uint64_t instance = 0;
  ConnectionName name;
};
using HostedChange = std::variant<HostedBegan, HostedEnded, HostedChanged, HostedDone, HostedGone>;
/// Takes every change, in order.
using HostedSink = std::function<void(const HostedChange&)>;

using SavedStores = std::map<std::uint64_t, SavedStore>;  // by instance
/// Nothing where the store of the change is not there.
inline void apply(const HostedChange& change, SavedStores& stores) {
  if (const auto* began = std::get_if<HostedBegan>(&change)) {
    SavedStore& fresh = stores[began->instance] = SavedStore();
    fresh.job = began->job;
    fresh.generation = began->generation;
    return;
  }
  const auto found = stores.find(std::visit([](const auto& each) { return each.instance; }, change));
  if (found == stores.end()) return;
  if (const auto* changed = std::get_if<HostedChanged>(&change))
    found->second.core.apply(changed->change);
  else if (const auto* done = std::get_if<HostedDone>(&change))
    found->second.connections.insert_or_assign(done->name, done->last);
  else if (const auto* gone = std::get_if<HostedGone>(&change))
    found->second.connections.erase(gone->name);
  else
    stores.erase(found);
}

}  // namespace muster
