// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/store_query.h"

#include <algorithm>
#include <string>

namespace muster {

std::vector<control::StoreJobState> store_jobs(const StoreCore& core, std::string_view only,
                                               std::uint64_t& total) {
  std::vector<std::string_view> found;
  core.accounts().each([&](std::string_view state, const JobAccount& account) {
    if (account.empty()) return;
    ++total;
    if (const auto job = state.substr(TorchrunJobs::kPrefix.size()); only.empty() || job == only)
      found.push_back(state);
  });
  const auto end =
      found.begin() + static_cast<std::ptrdiff_t>(std::min(found.size(), control::kMaxQueryEntries));
  std::partial_sort(found.begin(), end, found.end());
  std::vector<control::StoreJobState> out;
  for (auto at = found.begin(); at != end; ++at) {
    const JobAccount account = core.accounts().find(*at);
    out.push_back({std::string(at->substr(TorchrunJobs::kPrefix.size(), control::kMaxQueryText)),
                   core.torchrun().num_agents(*at), account.clients, account.keys, account.bytes,
                   account.waits});
  }
  return out;
}

}  // namespace muster
