// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/stall_ledger.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

double seconds(Instant from, Instant to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

std::vector<StallLedger::Line> StallLedger::look(const std::vector<Wait>& waits, Instant now) {
  for (const Wait& wait : waits) {
    Stall& stall = stalls_.try_emplace(wait.cause, Stall{wait.since, now, {}, wait.disk}).first->second;
    stall.since = std::min(stall.since, wait.since);
    stall.seen = now;
    const auto at = std::lower_bound(stall.ranks.begin(), stall.ranks.end(), wait.rank);
    if (at == stall.ranks.end() || *at != wait.rank) stall.ranks.insert(at, wait.rank);
  }
  std::vector<Line> out;
  for (auto at = stalls_.begin(); at != stalls_.end();) {
    auto& [cause, stall] = *at;
    if (stall.seen != now) {
      if (stall.said)
        out.push_back({fmt::format("{} waited {:.0f} s for {}", rank_list(stall.ranks),
                                   seconds(stall.since, now), cause),
                       stall.disk});
      at = stalls_.erase(at);
      continue;
    }
    if (!stall.said && now - stall.since >= kWorthSaying) {
      stall.said = true;
      out.push_back({fmt::format("{} {} waited {:.0f} s so far for {}", rank_list(stall.ranks),
                                 stall.ranks.size() == 1 ? "has" : "have", seconds(stall.since, now), cause),
                     stall.disk});
    }
    ++at;
  }
  return out;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (i > 0) out += ',';
    out += std::to_string(ranks[i]);
    if (end - i > 1) out += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return out;
}

}  // namespace muster::launcher
