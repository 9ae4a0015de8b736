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
  Job& job = jobs_[std::string(state)];
  job.agents.insert(client);
  due_.erase({std::exchange(job.due, Instant::max()), std::string(state)});
}

void TorchrunJobs::left(ClientId client, Instant now) {
  if (states_.empty()) return;
  const auto found = states_.find(client);
  if (found == states_.end()) return;
  for (const std::string& state : found->second) {
    Job& job = jobs_.find(state)->second;
    job.agents.erase(client);
    if (job.agents.empty()) desert(state, job, now);
  }
  states_.erase(found);
}

void TorchrunJobs::found(std::string_view state, Instant now) {
  if (is_state(state)) desert(std::string(state), jobs_[std::string(state)], now);
}

void TorchrunJobs::desert(const std::string& state, Job& job, Instant now) {
  job.due = now + keep_;
  due_.emplace(job.due, state);
}

Instant TorchrunJobs::next_deadline() const {
  if (due_.size() > kMaxDeserted) return Instant::min();
  return due_.empty() ? Instant::max() : due_.begin()->first;
}

std::vector<std::string> TorchrunJobs::take_due(Instant now) {
  std::vector<std::string> out;
  while (!due_.empty() && (due_.size() > kMaxDeserted || due_.begin()->first <= now)) {
    out.push_back(due_.begin()->second);
    jobs_.erase(out.back());
    due_.erase(due_.begin());
  }
  return out;
}

}  // namespace muster
