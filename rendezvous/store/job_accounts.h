// SPDX-License-Identifier: Apache-2.0
// JobAccounts: what each job of torchrun has of a store that many use: keys and queues, bytes, waits,
// clients. A name tells its job: "/torch.rendezvous.<id>", or "/torch.rendezvous.<id>.<round>/" and more;
// other names are nobody's. A client is one of the first job whose names it changes or waits for; who only
// reads is none. Pure; owned by a StoreCore, which counts as it changes; one thread. Each call is O(length of
// the name), and the inlined test is all that other names cost. Nothing here fails.
#pragma once

#include <cstddef>
#include <string_view>
#include <unordered_map>

#include "rendezvous/base/key_map.h"
#include "rendezvous/store/torchrun_jobs.h"
#include "rendezvous/store/wait_table.h"

namespace muster {

class JobAccounts {
 public:
  /// The name may be a job's: of other names this is false.
  [[nodiscard]] static bool concerns(std::string_view name) {
    return name.starts_with(TorchrunJobs::kPrefix);
  }
  /// The job's state, "/torch.rendezvous.<id>"; empty: the name is no job's.
  [[nodiscard]] static std::string_view state_of(std::string_view name);

  /// Of the job whose name it is, made where there is none; nullptr: no job's. It stays where it is while it
  /// is not empty, and until the next call otherwise.
  [[nodiscard]] JobAccount* of(std::string_view name);
  /// What there is now.
  [[nodiscard]] JobAccount find(std::string_view state) const;
  /// call(state, account) for each, empty ones too.
  template <class Call>
  void each(const Call& call) const {
    for (const auto& [state, account] : accounts_) call(std::string_view(state), account);
  }

  [[nodiscard]] bool has_job(ClientId client) const { return clients_.contains(client); }
  void joined(ClientId client, std::string_view name);
  void gone(ClientId client);

  /// Accounts, those included that are empty and not yet forgotten: no more than there are others, and 64.
  [[nodiscard]] std::size_t num_accounts() const { return accounts_.size(); }

 private:
  KeyMap<JobAccount> accounts_;  // by state
  std::size_t tidy_at_ = 64;     // so many accounts: the empty ones are dropped
  std::unordered_map<ClientId, JobAccount*> clients_;
};

}  // namespace muster
