// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/wait_table.h"

#include <string>

namespace muster {

void WaitTable::add(ClientId client, std::string_view key) {
  auto found = queues_.find(key);
  if (found == queues_.end()) {
    found = queues_.emplace(std::string(key), WaitQueue()).first;
    num_bytes_ += kQueueBytes + key.size();
  }
  WaitQueue& queue = found->second;
  // Registrations of one wait are made in one go, so a repeated key finds its client at the end of the queue.
  if (queue.last != nullptr && queue.last->client == client) return;

  Registrations& mine = waits_[client];
  Registration& added = mine.emplace_back(Registration{client, &*found, queue.last, nullptr, {}});
  added.self = std::prev(mine.end());
  ++num_registrations_;
  (queue.last != nullptr ? queue.last->next : queue.first) = &added;
  queue.last = &added;
}

void WaitTable::unlink(Registration& registration) {
  WaitQueue& queue = registration.queue->second;
  (registration.previous != nullptr ? registration.previous->next : queue.first) = registration.next;
  (registration.next != nullptr ? registration.next->previous : queue.last) = registration.previous;
  --num_registrations_;
  if (queue.first != nullptr) return;
  num_bytes_ -= kQueueBytes + registration.queue->first.size();
  queues_.erase(queues_.find(registration.queue->first));
}

std::size_t WaitTable::num_registrations(ClientId client) const {
  const auto wait = waits_.find(client);
  return wait == waits_.end() ? 0 : wait->second.size();
}

bool WaitTable::remove(ClientId client) {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) return false;
  for (Registration& registration : wait->second) unlink(registration);
  waits_.erase(wait);
  return true;
}

bool WaitTable::satisfy(Registration& registration) {
  const auto wait = waits_.find(registration.client);
  unlink(registration);
  wait->second.erase(registration.self);
  if (!wait->second.empty()) return false;
  waits_.erase(wait);
  return true;
}

void WaitTable::satisfy_all(std::string_view key, bool first_only, std::vector<ClientId>& woken) {
  const auto queue = queues_.find(key);
  if (queue == queues_.end()) return;
  for (Registration* at = queue->second.first; at != nullptr;) {
    Registration* next = at->next;
    const ClientId client = at->client;
    if (satisfy(*at)) {
      woken.push_back(client);
      if (first_only) return;
    }
    at = next;
  }
}

}  // namespace muster
