// SPDX-License-Identifier: Apache-2.0
// What of a hosted store (hosted_stores.h) outlives the coordinator's process: its keys and queues, and of
// each connection of a worker the last request that changed something, with its answer. That is enough to go
// on where the connection was: an agent keeps what it was not answered, and sends it again; a change is not
// made twice, and what only reads or waits may be repeated. Values and an interface; told by HostedStores,
// written by journal.h, told again into a SavedState. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/coordinator/membership.h"
#include "rendezvous/store/store_core.h"
#include "rendezvous/store/store_recorder.h"

namespace muster {

/// A worker's connection: whose agent's, and its number there.
struct ChannelName {
  membership::NodeId node;
  std::uint32_t channel = 0;

  friend bool operator==(const ChannelName&, const ChannelName&) = default;
  friend bool operator<(const ChannelName& a, const ChannelName& b) {
    if (a.node.high != b.node.high) return a.node.high < b.node.high;
    return a.node.low != b.node.low ? a.node.low < b.node.low : a.channel < b.channel;
  }
};

/// The last request of a connection that changed something.
struct ChannelMark {
  std::uint64_t end = 0;               ///< its number
  std::string answer;                  ///< to it; empty once the agent has it, or where there is none
  std::optional<std::string> barrier;  ///< its key: it waits there since, with no answer yet

  friend bool operator==(const ChannelMark&, const ChannelMark&) = default;
};

struct SavedStore {
  std::string job;
  std::int64_t generation = 0;
  StoreCore core;
  std::map<ChannelName, ChannelMark> marks;
};

/// Who has to hear of the changes of hosted stores, in order. A store is named by its instance.
class HostedRecorder {
 public:
  virtual ~HostedRecorder() = default;
  virtual void hosted_began(std::string_view job, std::int64_t generation, std::uint64_t instance) = 0;
  virtual void hosted_ended(std::uint64_t instance) = 0;
  virtual void hosted_changed(std::uint64_t instance, const StoreChange& change) = 0;
  /// The connection's last change is made. Belongs to the changes before it.
  virtual void hosted_done(std::uint64_t instance, const ChannelName& name, const ChannelMark& mark) = 0;
  /// The connection is no more, and nothing of it will be sent again.
  virtual void hosted_gone(std::uint64_t instance, const ChannelName& name) = 0;
};

/// Changes of one hosted store, for a StoreCore.
class HostedChanges final : public StoreRecorder {
 public:
  HostedChanges(HostedRecorder& to, std::uint64_t instance) : to_(to), instance_(instance) {}

  void set(std::string_view key, std::string_view value) override {
    tell({StoreChange::Kind::kSet, key, value});
  }
  void append(std::string_view key, std::string_view bytes) override {
    tell({StoreChange::Kind::kAppend, key, bytes});
  }
  void erase(std::string_view key) override { tell({StoreChange::Kind::kErase, key, {}}); }
  void push(std::string_view queue, std::string_view element) override {
    tell({StoreChange::Kind::kPush, queue, element});
  }
  void pop(std::string_view queue) override { tell({StoreChange::Kind::kPop, queue, {}}); }

  /// Whether there was any since the last call.
  [[nodiscard]] bool take_changed() { return std::exchange(changed_, false); }

 private:
  void tell(const StoreChange& change) {
    changed_ = true;
    to_.hosted_changed(instance_, change);
  }

  HostedRecorder& to_;
  std::uint64_t instance_;
  bool changed_ = false;
};

inline void describe(const SavedStore& store, std::uint64_t instance, HostedRecorder& to) {
  to.hosted_began(store.job, store.generation, instance);
  HostedChanges changes(to, instance);
  store.core.describe(changes);
  for (const auto& [name, mark] : store.marks) to.hosted_done(instance, name, mark);
}

}  // namespace muster
