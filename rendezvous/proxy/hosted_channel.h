// SPDX-License-Identifier: Apache-2.0
// HostedStores::Store, Mount and Channel: what a HostedStores knows of one job's store, of what one agent has
// of it, and of one of that agent's workers. Its own; for its own files only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rendezvous/proxy/hosted_stores.h"

namespace muster {

struct HostedStores::Channel final : RequestRecorder {
  /// `position`: bytes of requests that came before, to another process.
  Channel(Mount& on, std::uint32_t its_number, ClientId id, StoreCore& core,
          const HostedStoresOptions& options, std::uint64_t position)
      : mount(on),
        number(its_number),
        client(id),
        begin(position),
        done(position),
        told_done(position),
        session(id, core, options.limits),
        stream(options.window_bytes, position) {
    session.record_to(this);
  }

  void executed(const wire::Request& request, std::string_view answer, std::uint64_t end) override;

  Mount& mount;
  std::uint32_t number;
  ClientId client;
  std::uint64_t begin;
  std::uint64_t done;       // bytes of requests that were executed
  std::uint64_t told_done;  // of done
  Session session;
  StoreStream stream;
  std::string input;  // left alone until the answers before it are read
  bool in_turn = false;
  bool confirmed = true;  // the agent has said that it still has it
  std::size_t buffered_bytes = 0;
};

/// What one agent has of a store.
struct HostedStores::Mount {
  Mount(Store& of, const membership::NodeId& whose) : store(of), node(whose) {}

  Store& store;
  membership::NodeId node;
  std::optional<ConnectionId> connection;
  std::unordered_map<std::uint32_t, std::unique_ptr<Channel>> channels;
  /// Where the store is recorded; of a channel that this side has closed until the agent knows it.
  std::unordered_map<std::uint32_t, ChannelMark> marks;
  std::uint32_t highest = 0;         // number of a channel there ever was
  std::uint32_t num_awaited = 0;     // channels of an earlier connection that are still to be named
  std::vector<std::uint32_t> named;  // those that were
  std::deque<control::Message> urgent;
  std::deque<std::uint32_t> turns;  // channels with something to send
};

struct HostedStores::Store {
  std::string job;
  std::int64_t generation = 0;
  std::uint64_t instance = 0;
  StoreCore core;  // outlives the sessions
  HostedRecorder* recorder = nullptr;
  std::optional<HostedChanges> changes;  // where there is a recorder
  std::unordered_map<ClientId, Channel*> clients;
  ClientId next_client = 0;
  std::unordered_map<membership::NodeId, std::unique_ptr<Mount>, membership::NodeIdHash> mounts;

  [[nodiscard]] Mount& mount_of(const membership::NodeId& node) {
    auto& mount = mounts[node];
    if (!mount) mount = std::make_unique<Mount>(*this, node);
    return *mount;
  }
  void tell_mark(const Mount& mount, std::uint32_t channel, const ChannelMark& mark) const {
    recorder->hosted_done(instance, {mount.node, channel}, mark);
  }
};

}  // namespace muster
