// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/hosted_stores.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/proxy/hosted_channel.h"

namespace muster {

HostedStores::HostedStores(const HostedStoresOptions& options, std::uint64_t first_instance)
    : options_(options), next_instance_(first_instance) {
  options_.limits.legacy = wire::Generation::kRelayed;
  options_.limits.store = of_one_job(options_.limits.store.job);
}

HostedStores::~HostedStores() = default;

const StoreCore* HostedStores::find(std::string_view job) const {
  const auto found = stores_.find(job);
  return found == stores_.end() ? nullptr : &found->second->core;
}

std::string HostedStores::receive(ConnectionId from, const std::optional<Membership>& member,
                                  const control::Message& message) {
  if (const auto* request = std::get_if<control::StoreAttach>(&message)) {
    if (request->num_channels > 4 * options_.max_channels)
      return fmt::format("it has {} channels, the limit is {} (--max-store-channels)", request->num_channels,
                         options_.max_channels);
    attach(from, member, *request);
    return {};
  }
  const auto found = mounts_.find(from);
  // Sent before the agent heard that the generation is over.
  if (found == mounts_.end()) return {};
  Mount& mount = *found->second;
  if (mount.urgent.size() > 4 * options_.max_channels) return "it sends and reads nothing";
  if (const auto* request = std::get_if<control::StoreOpen>(&message)) return open(mount, *request);
  if (const auto* request = std::get_if<control::StoreBytes>(&message)) return bytes(mount, *request);
  if (const auto* request = std::get_if<control::StoreCredit>(&message))
    return bytes(mount, {request->channel, request->consumed, false, {}});
  if (const auto* request = std::get_if<control::StoreClose>(&message)) {
    forget(mount, request->channel);
    say(mount, control::StoreClose{request->channel, {}});
    return {};
  }
  return fmt::format("an agent does not send {}", control::name_of(message));
}

void HostedStores::attach(ConnectionId from, const std::optional<Membership>& member,
                          const control::StoreAttach& attach) {
  std::string refusal;
  if (!member || member->generation != attach.generation)
    refusal = fmt::format("generation {} is over", attach.generation);
  Store* store = nullptr;
  if (member) {
    auto found = stores_.find(member->job);
    if (found != stores_.end() && found->second->generation != member->generation) {
      over(member->job);
      found = stores_.end();
    }
    if (found != stores_.end()) store = found->second.get();
  }
  const bool gone = attach.instance != 0 && (store == nullptr || store->instance != attach.instance);
  if (refusal.empty() && (gone || attach.lost)) {
    lost_ = member;
    return;
  }
  if (!refusal.empty()) {
    refused_.insert_or_assign(from, control::StoreRefused{attach.generation, std::move(refusal)});
    return;
  }
  disconnected(from);
  if (store == nullptr) {
    auto fresh = std::make_unique<Store>();
    fresh->job = member->job;
    fresh->generation = attach.generation;
    fresh->instance = next_instance_++;
    store = stores_.emplace(member->job, std::move(fresh)).first->second.get();
    if (recorder_ != nullptr) recorder_->hosted_began(store->job, store->generation, store->instance);
    record(*store);
  }
  Mount& mount = store->mount_of(member->node);
  detach(mount);
  mount.connection = from;
  mounts_[from] = &mount;
  mount.num_awaited = attach.num_channels;
  mount.named.clear();
  for (auto& [number, channel] : mount.channels) channel->confirmed = false;
  if (mount.num_awaited == 0) forget_unnamed(mount);
  say(mount, control::StoreAttached{attach.generation, store->instance,
                                    static_cast<std::uint32_t>(options_.window_bytes), incarnation_});
}

std::string HostedStores::open(Mount& mount, const control::StoreOpen& open) {
  const bool again = mount.num_awaited > 0;
  if (again) mount.named.push_back(open.channel);
  const auto found = mount.channels.find(open.channel);
  if (again && open.incarnation != incarnation_) {
    if (std::string error = begin_anew(mount, open); !error.empty()) return error;
  } else if (found != mount.channels.end()) {
    Channel& channel = *found->second;
    if (!again || channel.confirmed) return fmt::format("channel {} is opened twice", open.channel);
    if (!channel.stream.resume(open.received))
      return fmt::format("channel {} cannot have received {} bytes", open.channel, open.received);
    channel.stream.forget(open.received);
    channel.confirmed = true;
    say(mount, control::StoreCredit{open.channel, channel.stream.received(), tell_done(channel)});
    make_ready(channel);
  } else if (open.channel <= mount.highest) {
    say(mount, control::StoreClose{open.channel, {}});
  } else if (open.received > 0) {
    return fmt::format("channel {} is new and has received {} bytes", open.channel, open.received);
  } else {
    mount.highest = open.channel;
    if (!refuse_surplus(mount, open.channel)) {
      create(mount, open.channel, 0);
      if (again) say(mount, control::StoreCredit{open.channel});
    }
  }
  if (again && --mount.num_awaited == 0) forget_unnamed(mount);
  return {};
}

bool HostedStores::refuse_surplus(Mount& mount, std::uint32_t number) {
  const std::size_t most_of_job = options_.limits.store.job.max_connections;
  std::string why;
  if (mount.channels.size() >= options_.max_channels)
    why = fmt::format("this node has {} connections to the store, the limit is {} (--max-store-channels)",
                      mount.channels.size(), options_.max_channels);
  else if (mount.store.clients.size() >= most_of_job)
    why = fmt::format("the job has {} connections to its store, the limit is {} (--max-job-connections)",
                      mount.store.clients.size(), most_of_job);
  if (why.empty()) return false;
  say(mount, control::StoreClose{number, std::move(why)});
  return true;
}

HostedStores::Channel& HostedStores::create(Mount& mount, std::uint32_t number, std::uint64_t position) {
  Store& store = mount.store;
  const ClientId client = store.next_client++;
  auto channel = std::make_unique<Channel>(mount, number, client, store.core, options_, position);
  Channel& out = *channel;
  store.clients.emplace(client, channel.get());
  mount.channels.emplace(number, std::move(channel));
  ++num_channels_;
  return out;
}

// Where nothing outlives this process, what it has taken is safe with it.
std::uint64_t HostedStores::tell_done(Channel& channel) const {
  return channel.told_done = incarnation_ == 0 ? channel.stream.consumed() : channel.done;
}

bool HostedStores::credit_is_due(const Channel& channel) const {
  return channel.stream.credit_is_due() ||
         (incarnation_ != 0 && channel.done - channel.told_done >= options_.window_bytes / 2);
}

std::string HostedStores::bytes(Mount& mount, const control::StoreBytes& bytes) {
  const auto found = mount.channels.find(bytes.channel);
  if (found == mount.channels.end()) return {};  // it was closed while this was on its way
  Channel& channel = *found->second;
  if (!channel.stream.acknowledge(bytes.consumed))
    return fmt::format("channel {} has consumed {} bytes that were not sent", bytes.channel, bytes.consumed);
  channel.stream.forget(bytes.consumed);
  if (!channel.stream.receive(bytes.bytes.size()))
    return fmt::format("channel {} was sent more than its window of {} bytes (--store-window)", bytes.channel,
                       options_.window_bytes);
  if (channel.input.empty())
    run(channel, bytes.bytes);
  else {
    channel.input += bytes.bytes;
    run(channel, std::exchange(channel.input, {}));
  }
  deliver(mount.store);
  return {};
}

void HostedStores::run(Channel& channel, std::string_view input) {
  const std::size_t before = input.size();
  Session::State state = channel.session.receive(input, channel.stream.writable(), effects_);
  while (state == Session::State::kDeliver && num_buffered_ <= options_.max_buffered_bytes) {
    deliver(channel.mount.store);
    state = channel.session.receive(input, channel.stream.writable(), effects_);
  }
  channel.stream.consume(before - input.size());
  if (state == Session::State::kClose) return close(channel, channel.session.close_reason());
  channel.input.assign(input);
  count(channel);
  if (num_buffered_ > options_.max_buffered_bytes && close_largest(channel)) return;
  if (channel.stream.num_unsent() > 0 || credit_is_due(channel)) make_ready(channel);
}

// Not who came last. True if that is `running`.
bool HostedStores::close_largest(Channel& running) {
  Channel* largest = &running;
  for (const auto& [job, store] : stores_)
    for (const auto& [id, channel] : store->clients)
      if (channel->buffered_bytes > largest->buffered_bytes) largest = channel;
  const bool own = largest == &running;
  close(*largest,
        fmt::format("unfinished requests and unread answers of all workers are {} bytes, the limit is {} "
                    "(--max-buffered-bytes), and this one has the most",
                    num_buffered_, options_.max_buffered_bytes));
  return own;
}

// Brings what was just executed to the other clients concerned.
void HostedStores::deliver(Store& store) {
  if (effects_.empty()) return;
  const auto put = [&](ClientId id, auto&& append) {
    const auto found = store.clients.find(id);
    if (found == store.clients.end()) return;
    append(*found->second);
    count(*found->second);
    make_ready(*found->second);
  };
  for (const ClientId id : effects_.woken)
    put(id, [&](Channel& channel) {
      const auto& by = effects_.by_element;
      const bool element = channel.session.shares_wait() && std::find(by.begin(), by.end(), id) != by.end();
      channel.stream.writable().push_back(element ? wire::kElementCame : wire::kStopWaiting);
      left_barrier(channel);
    });
  for (const WatchEvent& event : effects_.watched)
    for (const ClientId id : event.clients)
      put(id, [&](Channel& channel) { put_watch_event(channel.stream.writable(), event); });
  effects_.clear();
}

void HostedStores::count(Channel& channel) {
  std::size_t now = channel.input.size() + channel.session.num_pending_bytes() + channel.stream.num_bytes();
  if (const auto& marks = channel.mount.marks; !marks.empty())
    if (const auto found = marks.find(channel.number); found != marks.end())
      now += found->second.answer.size();
  num_buffered_ += now - std::exchange(channel.buffered_bytes, now);  // modulo 2^64: it may be less
}

void HostedStores::make_ready(Channel& channel) {
  Mount& mount = channel.mount;
  if (!channel.in_turn) mount.turns.push_back(channel.number);
  channel.in_turn = true;
  if (mount.connection) ready_.push_back(*mount.connection);
}

void HostedStores::say(Mount& mount, control::Message message) {
  mount.urgent.push_back(std::move(message));
  if (mount.connection) ready_.push_back(*mount.connection);
}

void HostedStores::close(Channel& channel, std::string reason) {
  Mount& mount = channel.mount;
  const std::uint32_t number = channel.number;
  say(mount, control::StoreClose{number, std::move(reason)});
  remove(mount, number);
}

void HostedStores::remove(Mount& mount, std::uint32_t number) {
  const auto found = mount.channels.find(number);
  if (found == mount.channels.end()) return;
  num_buffered_ -= found->second->buffered_bytes;
  mount.store.clients.erase(found->second->client);
  mount.channels.erase(found);
  --num_channels_;
}

void HostedStores::detach(Mount& mount) {
  if (mount.connection) mounts_.erase(*mount.connection);
  mount.connection.reset();
  mount.urgent.clear();
}

void HostedStores::disconnected(ConnectionId id) {
  const auto found = mounts_.find(id);
  if (found != mounts_.end()) detach(*found->second);
  refused_.erase(id);
}

void HostedStores::over(std::string_view job) {
  const auto found = stores_.find(job);
  if (found == stores_.end()) return;
  if (recorder_ != nullptr) recorder_->hosted_ended(found->second->instance);
  for (auto& [node, mount] : found->second->mounts) {
    detach(*mount);
    for (const auto& [number, channel] : mount->channels) num_buffered_ -= channel->buffered_bytes;
    num_channels_ -= mount->channels.size();
  }
  stores_.erase(found);
}

std::vector<ConnectionId> HostedStores::take_ready() {
  std::sort(ready_.begin(), ready_.end());
  ready_.erase(std::unique(ready_.begin(), ready_.end()), ready_.end());
  return std::exchange(ready_, {});
}

bool HostedStores::next(ConnectionId to, control::Message& message) {
  const auto found = mounts_.find(to);
  if (found == mounts_.end()) return false;
  Mount& mount = *found->second;
  if (!mount.urgent.empty()) {
    message = std::move(mount.urgent.front());
    mount.urgent.pop_front();
    return true;
  }
  while (!mount.turns.empty()) {
    const auto entry = mount.channels.find(mount.turns.front());
    if (entry == mount.channels.end() || !entry->second->confirmed) {
      if (entry != mount.channels.end()) entry->second->in_turn = false;
      mount.turns.pop_front();
      continue;
    }
    Channel& channel = *entry->second;
    const std::string_view piece = channel.stream.sendable(kStoreChunkBytes);
    const bool credit = credit_is_due(channel);
    if (piece.empty()) {
      channel.in_turn = false;
      mount.turns.pop_front();
      if (!credit) continue;
      message = control::StoreCredit{channel.number, channel.stream.tell_consumed(), tell_done(channel)};
      return true;
    }
    control::StoreBytes out{channel.number, channel.stream.tell_consumed(), false, std::string(piece),
                            tell_done(channel)};
    channel.stream.sent(piece.size());
    out.whole = channel.stream.num_unsent() == 0;
    // To the end of the line.
    mount.turns.pop_front();
    mount.turns.push_back(channel.number);
    message = std::move(out);
    return true;
  }
  return false;
}

}  // namespace muster
