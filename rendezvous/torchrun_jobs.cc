// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/torchrun_jobs.h"

#include <algorithm>

namespace muster {

bool TorchrunJobs::is_state(std::string_view key) {
  return key.starts_with(kPrefix) && key.size() > kPrefix.size() &&
         key.find('/', kPrefix.size()) == std::string_view::npos;
}

bool TorchrunJobs::belongs(std::string_view key, std::string_view state) {
  if (!key.starts_with(state)) return false;
  std::string_view rest = key.substr(state.size());
  if (rest.empty()) return true;
  if (rest.front() != '.') return false;
  rest.remove_prefix(1);
  const auto digits = rest.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string_view::npos && rest[digits] == '/';
}

void TorchrunJobs::took_part(ClientId client, std::string_view key) {
  if (!on_ || !is_state(key)) return;
  const auto known = agents_.find(key);
  if (known != agents_.end() && known->second.contains(client)) return;
  std::set<std::string>& states = states_[client];
  if (states.size() >= kMaxStates) return;
  const std::string state(key);
  agents_[state].insert(client);
  states.insert(state);
  fresh_.erase(state);
  due_.erase(state);
}

void TorchrunJobs::gone(ClientId client) {
  if (states_.empty()) return;
  const auto found = states_.find(client);
  if (found == states_.end()) return;
  for (const std::string& state : found->second) {
    const auto agents = agents_.find(state);
    agents->second.erase(client);
    if (!agents->second.empty()) continue;
    agents_.erase(agents);
    fresh_.insert(state);
  }
  states_.erase(found);
}

void TorchrunJobs::found(std::string_view state) {
  if (is_state(state) && !agents_.contains(state)) fresh_.emplace(state);
}

void TorchrunJobs::settle(Instant now, Millis keep) {
  for (const std::string& state : fresh_) due_.insert_or_assign(state, now + keep);
  fresh_.clear();
}

Instant TorchrunJobs::next_deadline() const {
  Instant out = Instant::max();
  for (const auto& [state, when] : due_) out = std::min(out, when);
  return out;
}

std::vector<std::string> TorchrunJobs::take_due(Instant now) {
  std::vector<std::string> out;
  for (const auto& [state, when] : due_)
    if (when <= now) out.push_back(state);
  for (const std::string& state : out) due_.erase(state);
  return out;
}

}  // namespace muster
