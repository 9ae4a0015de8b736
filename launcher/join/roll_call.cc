// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/roll_call.h"

#include <algorithm>
#include <utility>

namespace muster::launcher {

void RollCall::came(int node, RoleInfo info) {
  by_connection_[info.connection] = node;
  here_.insert_or_assign(node, std::move(info));
  while (here_.contains(missing_)) ++missing_;
}

void RollCall::gone(const std::string& connection) {
  const auto found = by_connection_.find(connection);
  if (found == by_connection_.end()) return;
  here_.erase(found->second);
  missing_ = std::min(missing_, found->second);
  by_connection_.erase(found);
}

std::vector<RoleInfo> RollCall::take() {
  std::vector<RoleInfo> out;
  out.reserve(here_.size());
  for (auto& [node, info] : std::exchange(here_, {})) out.push_back(std::move(info));
  by_connection_.clear();
  missing_ = 0;
  return out;
}

}  // namespace muster::launcher
