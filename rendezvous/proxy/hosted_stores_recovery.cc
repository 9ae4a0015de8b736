// SPDX-License-Identifier: Apache-2.0
// What of the hosted stores outlives the process, and how channels go on in the next one.
#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/proxy/hosted_channel.h"

namespace muster {

// Beside the changes it made, which the core has told, so that both are in one frame of the log.
void HostedStores::Channel::executed(const wire::Request& request, std::string_view answer,
                                     std::uint64_t end) {
  done = begin + end;
  Store& store = mount.store;
  if (!store.changes) return;
  if (!store.changes->take_changed()) {
    // An agent asks for more when it has the answer to what it asked before.
    if (const auto found = mount.marks.find(number); found != mount.marks.end()) {
      found->second.answer = std::string();
      found->second.barrier.reset();
    }
    return;
  }
  ChannelMark& mark = mount.marks[number];
  mark.end = done;
  mark.answer = answer;
  mark.barrier.reset();
  if (request.op == wire::Op::kBarrier && store.core.waiting(client)) mark.barrier = request.key;
  store.tell_mark(mount, number, mark);
}

void HostedStores::record_to(HostedRecorder* recorder, std::uint64_t incarnation) {
  recorder_ = recorder;
  incarnation_ = recorder == nullptr ? 0 : incarnation;
}

void HostedStores::restore(std::uint64_t instance, SavedStore saved) {
  over(saved.job);
  auto fresh = std::make_unique<Store>();
  Store& store = *fresh;
  store.job = std::move(saved.job);
  store.generation = saved.generation;
  store.instance = instance;
  store.core = std::move(saved.core);
  stores_.emplace(store.job, std::move(fresh));
  record(store);
  for (auto& [name, mark] : saved.marks) {
    Mount& mount = store.mount_of(name.node);
    // Who is in a barrier may be let out before its agent is back, and is counted in no second time.
    if (mark.barrier) {
      const Channel& channel = create(mount, name.channel, mark.end);
      mount.channels.at(name.channel)->confirmed = false;
      store.core.stay_at_barrier(channel.client, *mark.barrier);
    }
    mount.marks.emplace(name.channel, std::move(mark));
  }
}

void HostedStores::record(Store& store) {
  store.recorder = recorder_;
  if (recorder_ == nullptr) return;
  store.changes.emplace(*recorder_, store.instance);
  store.core.record_to(&*store.changes);
}

void HostedStores::describe(HostedRecorder& to) const {
  for (const auto& [job, store] : stores_) {
    to.hosted_began(job, store->generation, store->instance);
    HostedChanges changes(to, store->instance);
    store->core.describe(changes);
    for (const auto& [node, mount] : store->mounts)
      for (const auto& [number, mark] : mount->marks) to.hosted_done(store->instance, {node, number}, mark);
  }
}

// A channel of a former process, or one that this process began for an agent that has not heard of it.
std::string HostedStores::begin_anew(Mount& mount, const control::StoreOpen& open) {
  if (open.answered > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return fmt::format("channel {} cannot have been answered {} bytes", open.channel, open.answered);
  remove(mount, open.channel);
  mount.highest = std::max(mount.highest, open.channel);
  if (refuse_surplus(mount, open.channel)) return {};
  const auto found = mount.marks.find(open.channel);
  const ChannelMark* mark = found == mount.marks.end() ? nullptr : &found->second;
  const std::uint64_t position = std::max(mark == nullptr ? 0 : mark->end, open.answered);
  Channel& channel = create(mount, open.channel, position);
  say(mount, control::StoreCredit{open.channel, position, position, true});
  if (mark == nullptr || mark->end <= open.answered) return {};
  if (mark->barrier)
    mount.store.core.stay_at_barrier(channel.client, *mark->barrier);
  else
    channel.stream.write(mark->answer);
  count(channel);
  make_ready(channel);
  return {};
}

// The agent has let it out of a barrier, or is about to hear of it.
void HostedStores::left_barrier(const Channel& channel) {
  Mount& mount = channel.mount;
  const auto found = mount.marks.find(channel.number);
  if (found == mount.marks.end() || !found->second.barrier) return;
  found->second.barrier.reset();
  found->second.answer.assign(1, wire::kStopWaiting);
  if (mount.store.recorder != nullptr) mount.store.tell_mark(mount, channel.number, found->second);
}

// The agent has no such channel any more.
void HostedStores::forget(Mount& mount, std::uint32_t number) {
  remove(mount, number);
  if (mount.marks.erase(number) > 0 && mount.store.recorder != nullptr)
    mount.store.recorder->hosted_gone(mount.store.instance, {mount.node, number});
}

void HostedStores::forget_unnamed(Mount& mount) {
  std::sort(mount.named.begin(), mount.named.end());
  std::vector<std::uint32_t> gone;
  const auto look_at = [&](std::uint32_t number) {
    if (!std::binary_search(mount.named.begin(), mount.named.end(), number)) gone.push_back(number);
  };
  for (const auto& [number, channel] : mount.channels) look_at(number);
  for (const auto& [number, mark] : mount.marks) look_at(number);
  for (const std::uint32_t number : gone) forget(mount, number);
  mount.named = {};
}

}  // namespace muster
