// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/job_accounts.h"

namespace muster {

std::string_view JobAccounts::state_of(std::string_view name) {
  return concerns(name) ? TorchrunJobs::state_of(name) : std::string_view();
}

JobAccount* JobAccounts::of(std::string_view name) {
  const std::string_view state = state_of(name);
  if (state.empty()) return nullptr;
  const auto found = accounts_.find(state);
  if (found != accounts_.end()) return &found->second;
  // At twice what was left the last time: each account pays for one look.
  if (accounts_.size() >= tidy_at_) {
    std::erase_if(accounts_, [](const auto& entry) { return entry.second.empty(); });
    tidy_at_ = 2 * accounts_.size() + 64;
  }
  return &accounts_.emplace(state, JobAccount()).first->second;
}

JobAccount JobAccounts::find(std::string_view state) const {
  const auto found = accounts_.find(state);
  return found == accounts_.end() ? JobAccount() : found->second;
}

void JobAccounts::joined(ClientId client, std::string_view name) {
  if (has_job(client)) return;
  JobAccount* account = of(name);
  if (account == nullptr) return;
  ++account->clients;
  clients_.emplace(client, account);
}

void JobAccounts::gone(ClientId client) {
  if (clients_.empty()) return;
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  --found->second->clients;
  clients_.erase(found);
}

}  // namespace muster
