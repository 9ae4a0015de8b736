// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/base/text_exchange.h"

#include <algorithm>

#include <fmt/format.h>

#include "worker_runtime/groups/base/collective.h"

namespace muster::groups {

TextExchange exchange_through_store(Store& store, std::string name, std::vector<int> ranks, int me,
                                    Instant deadline) {
  return [&store, name = std::move(name), ranks = std::move(ranks), me, deadline,
          round = 0](const std::string& mine) mutable -> Result<std::vector<std::string>> {
    std::vector<std::string> keys;
    for (const int rank : ranks) keys.push_back(fmt::format("{}/{}/{}", name, round, rank));
    ++round;
    MUSTER_OK(store.set(keys[static_cast<std::size_t>(me)], mine));
    const Millis left = std::max(time_left(deadline, SteadyClock::now()), Millis(1));
    auto texts = store.multi_get(keys, left);
    if (texts || texts.error().code != ErrorCode::kTimeout) return texts;
    std::vector<int> missing;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto here = store.check(std::span(&keys[i], 1));
      if (here && !*here) missing.push_back(ranks[i]);
    }
    if (missing.empty()) return texts;
    return fail(
        ErrorCode::kTimeout,
        fmt::format("{} of {} ranks did not come within {} ms while the group was made ({}): {}; did they "
                    "start, and do they see the same store?",
                    missing.size(), ranks.size(), left.count(), name, rank_list(missing)));
  };
}

}  // namespace muster::groups
