// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/torchrun_jobs.h"

namespace muster {

bool TorchrunJobs::is_state(std::string_view key) {
  return key.starts_with(kPrefix) && key.size() > kPrefix.size() &&
         key.find('/', kPrefix.size()) == std::string_view::npos;
}

std::string_view TorchrunJobs::state_of(std::string_view key) {
  if (!key.starts_with(kPrefix)) return {};
  if (const auto slash = key.find('/', kPrefix.size()); slash != std::string_view::npos) {
    key = key.substr(0, slash);
    const auto dot = key.find_last_not_of("0123456789");
    if (dot == std::string_view::npos || key[dot] != '.' || dot + 1 == key.size()) return {};
    key = key.substr(0, dot);
  }
  return is_state(key) ? key : std::string_view();
}

void TorchrunJobs::joined(ClientId client, std::string_view state) {
  std::set<std::string>& states = states_[client];
  if (states.size() >= kMaxStates || !states.emplace(state).second) return;
  agents_[std::string(state)].insert(client);
  const auto place = places_.find(state);
  if (place == places_.end()) return;
  const auto deserted = place->second;
  places_.erase(place);
  deserted_.erase(deserted);
}

void TorchrunJobs::left(ClientId client, Instant now) {
  if (states_.empty()) return;
  const auto found = states_.find(client);
  if (found == states_.end()) return;
  for (const std::string& state : found->second) {
    const auto agents = agents_.find(state);
    agents->second.erase(client);
    if (!agents->second.empty()) continue;
    agents_.erase(agents);
    desert(state, now);
  }
  states_.erase(found);
}

void TorchrunJobs::found(std::string_view state, Instant now) {
  if (is_state(state)) desert(state, now);
}

void TorchrunJobs::desert(std::string_view state, Instant now) {
  deserted_.emplace_back(now + keep_, state);
  places_.emplace(deserted_.back().second, std::prev(deserted_.end()));
}

Instant TorchrunJobs::next_deadline() const {
  if (deserted_.size() > kMaxDeserted) return Instant::min();
  return deserted_.empty() ? Instant::max() : deserted_.front().first;
}

std::vector<std::string> TorchrunJobs::take_due(Instant now) {
  std::vector<std::string> out;
  while (!deserted_.empty() && (deserted_.size() > kMaxDeserted || deserted_.front().first <= now)) {
    places_.erase(deserted_.front().second);
    out.push_back(std::move(deserted_.front().second));
    deserted_.pop_front();
  }
  return out;
}

}  // namespace muster
