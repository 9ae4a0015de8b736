// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/torchrun_jobs.h"

#include <utility>

namespace muster {

bool TorchrunJobs::is_state(std::string_view key) {
  return key.starts_with(kPrefix) && key.size() > kPrefix.size() &&
         key.find('/', kPrefix.size()) == std::string_view::npos;
}

std::string_view TorchrunJobs::state_of(std::string_view key) {
  if (const auto slash = key.find('/', kPrefix.size()); slash != std::string_view::npos) {
    key = key.substr(0, slash);
    const auto dot = key.find_last_not_of("0123456789");
    if (dot == std::string_view::npos || key[dot] != '.' || dot + 1 == key.size()) return {};
    key = key.substr(0, dot);
  }
  return is_state(key) ? key : std::string_view();
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
  forget_due(state);
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

void TorchrunJobs::forget_due(std::string_view state) {
  if (const auto surplus = surplus_.find(state); surplus != surplus_.end()) surplus_.erase(surplus);
  const auto found = due_.find(state);
  if (found == due_.end()) return;
  by_time_.erase({found->second, found->first});
  due_.erase(found);
}

void TorchrunJobs::settle(Instant now, Millis keep) {
  for (const std::string& state : fresh_) {
    forget_due(state);
    const auto added = due_.emplace(state, now + keep).first;
    by_time_.emplace(added->second, added->first);
    if (due_.size() <= kMaxDeserted) continue;
    const std::string first(by_time_.begin()->second);
    forget_due(first);
    surplus_.insert(first);
  }
  fresh_.clear();
}

Instant TorchrunJobs::next_deadline() const {
  if (!surplus_.empty()) return Instant::min();
  return by_time_.empty() ? Instant::max() : by_time_.begin()->first;
}

std::vector<std::string> TorchrunJobs::take_due(Instant now) {
  std::vector<std::string> out(surplus_.begin(), surplus_.end());
  surplus_.clear();
  while (!by_time_.empty() && by_time_.begin()->first <= now) {
    out.emplace_back(by_time_.begin()->second);
    forget_due(out.back());
  }
  return out;
}

}  // namespace muster
