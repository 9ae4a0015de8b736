// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/wait_table.h"

#include <algorithm>
#include <string>

namespace muster {

void WaitTable::add(ClientId client, std::string_view key, JobAccount* account) {
  auto line = lines_.find(key);
  if (line == lines_.end()) {
    line = lines_.emplace(std::string(key), Line{nullptr, nullptr, account}).first;
    num_bytes_ += kLineBytes + key.size();
    if (account != nullptr) [[unlikely]]
      account->bytes += kLineBytes + key.size();
  }
  Line& ends = line->second;
  // Registrations of one wait are made in one go, so a repeated key finds its client at the end of the line.
  if (ends.last != nullptr && ends.last->client == client) return;

  Registrations& mine = waits_[client];
  Registration& added = mine.emplace_back(Registration{client, &*line, ends.last, nullptr, {}});
  added.self = std::prev(mine.end());
  ++num_registrations_;
  if (ends.account != nullptr) [[unlikely]]
    ++ends.account->waits;
  (ends.last != nullptr ? ends.last->next : ends.first) = &added;
  ends.last = &added;
}

void WaitTable::unlink(Registration& registration) {
  Line& line = registration.line->second;
  (registration.previous != nullptr ? registration.previous->next : line.first) = registration.next;
  (registration.next != nullptr ? registration.next->previous : line.last) = registration.previous;
  --num_registrations_;
  if (line.account != nullptr) [[unlikely]]
    --line.account->waits;
  if (line.first != nullptr) return;
  num_bytes_ -= kLineBytes + registration.line->first.size();
  if (line.account != nullptr) [[unlikely]]
    line.account->bytes -= kLineBytes + registration.line->first.size();
  lines_.erase(lines_.find(registration.line->first));
}

std::size_t WaitTable::num_registrations(ClientId client) const {
  const auto wait = waits_.find(client);
  return wait == waits_.end() ? 0 : wait->second.size();
}

std::size_t WaitTable::num_registrations(ClientId client, const JobAccount* account) const {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) return 0;
  return static_cast<std::size_t>(std::count_if(
      wait->second.begin(), wait->second.end(),
      [&](const Registration& registration) { return registration.line->second.account == account; }));
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

void WaitTable::arrived(std::string_view key, std::vector<ClientId>& woken) {
  if (waits_.empty()) return;  // the usual case of a SET: no second hash
  const auto line = lines_.find(key);
  if (line == lines_.end()) return;
  for (Registration* at = line->second.first; at != nullptr;) {
    Registration* next = at->next;
    const ClientId client = at->client;
    if (satisfy(*at)) woken.push_back(client);
    at = next;
  }
}

void WaitTable::element_arrived(std::string_view key, std::vector<ClientId>& woken) {
  if (waits_.empty()) return;
  const auto line = lines_.find(key);
  if (line == lines_.end()) return;
  for (Registration* at = line->second.first; at != nullptr;) {
    Registration* next = at->next;
    const ClientId client = at->client;
    if (satisfy(*at)) {
      woken.push_back(client);
      return;
    }
    at = next;
  }
}

}  // namespace muster
