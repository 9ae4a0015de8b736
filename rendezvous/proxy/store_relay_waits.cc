// SPDX-License-Identifier: Apache-2.0
// How the workers of a node wait together: the part of StoreRelay that decides who asks the coordinator.
// Waits for other keys are others, also where some of the keys are the same: all that PyTorch's process
// groups wait for is one key at a time (tests/data/wire: 20 of 20 waits), so that waits by key would save
// nothing, and a cancelled wait would have to be told from the keys that others still want.
#include <algorithm>
#include <utility>

#include "rendezvous/proxy/relay_worker.h"
#include "rendezvous/proxy/store_relay.h"

namespace muster {
namespace {

using wire::Op;

// Forgetting a queue's name costs a wait of its own for each of those who wait for it once more.
constexpr std::size_t kMaxQueueNames = 1024;

}  // namespace

bool StoreRelay::names_a_queue(const wire::Request& request) const {
  return !queues_.empty() &&
         std::any_of(request.items.begin(), request.items.end(),
                     [&](std::string_view name) { return queues_.contains(std::string(name)); });
}

void StoreRelay::remember_queue(std::string_view name) {
  if (queues_.size() >= kMaxQueueNames) queues_.clear();
  queues_.emplace(name);
}

void StoreRelay::wait(Worker& worker, const wire::Request& request) {
  if (request.items.empty()) return put(worker, wire::kStopWaiting);
  if (names_a_queue(request)) {
    worker.mode = Worker::Mode::kWaiting;
    return send(worker, request);
  }
  wire::Request shared = request;
  shared.op = Op::kSharedWait;
  wire::encode(shared, worker.wait, wire::Generation::kRelayed);
  const auto [found, first] = waits_.try_emplace(worker.wait);
  if (!first) {
    found->second.joined.push_back(worker.id);
    ++num_joined_;
    worker.mode = Worker::Mode::kJoined;
  } else {
    found->second.owner = worker.id;
    worker.mode = Worker::Mode::kWaiting;
    ask(worker, worker.wait);
  }
  release_followers(worker);
}

void StoreRelay::wait_alone(Worker& worker) {
  worker.mode = Worker::Mode::kWaiting;
  worker.leader = 0;
  // The same keys under the other opcode.
  std::string request = std::exchange(worker.wait, {});
  request[0] = static_cast<char>(Op::kWait);
  ask(worker, request);
}

// The wait at the coordinator ends, or is about to: another one waits for those who have joined.
void StoreRelay::stop_sharing(Worker& worker) {
  const auto found = worker.wait.empty() ? waits_.end() : waits_.find(worker.wait);
  worker.wait.clear();
  if (found == waits_.end() || found->second.owner != worker.id) return;
  Wait& wait = found->second;
  if (wait.joined.empty()) {
    waits_.erase(found);
    return;
  }
  Worker& next = at(wait.joined.front());
  wait.joined.erase(wait.joined.begin());
  --num_joined_;
  wait.owner = next.id;
  next.mode = Worker::Mode::kWaiting;
  ask(next, found->first);
}

void StoreRelay::cancel_wait(Worker& worker) {
  using Mode = Worker::Mode;
  if (worker.mode == Mode::kWaiting) {
    stop_sharing(worker);
    worker.mode = Mode::kCancelling;
    return send(worker, {.op = Op::kCancelWait});
  }
  if (worker.mode == Mode::kJoined) {
    std::erase(waits_.at(worker.wait).joined, worker.id);
    --num_joined_;
  } else {
    std::erase(at(worker.leader).followers, worker.id);
  }
  worker.wait.clear();
  worker.mode = Mode::kFree;
  put(worker, wire::kWaitCanceled);
}

void StoreRelay::woken(Worker& worker, bool by_element) {
  worker.mode = Worker::Mode::kFree;
  put(worker, wire::kStopWaiting);
  const auto found = worker.wait.empty() ? waits_.end() : waits_.find(worker.wait);
  if (found == waits_.end()) return;
  const auto entry = waits_.extract(found);
  worker.wait.clear();
  num_joined_ -= entry.mapped().joined.size();
  if (by_element) {
    wire::Decoder decoder(options_.wire, wire::Generation::kRelayed);
    std::string_view bytes = entry.key();
    wire::Request request;
    if (decoder.next(bytes, request) == wire::Decoder::Step::kRequest)
      for (const std::string_view name : request.items) remember_queue(name);
  }
  for (const WorkerId id : entry.mapped().joined) {
    Worker& other = at(id);
    if (by_element) {
      other.mode = Worker::Mode::kFollowing;
      other.leader = worker.id;
      worker.followers.push_back(id);
    } else {
      other.wait.clear();
      other.mode = Worker::Mode::kFree;
      put(other, wire::kStopWaiting);
    }
  }
}

// The one that was woken has said what it does with the element, or has gone.
void StoreRelay::release_followers(Worker& worker) {
  for (const WorkerId id : std::exchange(worker.followers, {})) wait_alone(at(id));
}

}  // namespace muster
