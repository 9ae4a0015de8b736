// SPDX-License-Identifier: Apache-2.0
// RollCall: which nodes of an attempt node 0 has heard of, by node rank, while it waits for the others. An
// agent that goes before all have come makes room for another. Pure: entries and names of connections in,
// the first missing node out; each costs O(log n). Owned by StaticRendezvous, one per attempt.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/join/rank_assignment.h"

namespace muster::launcher {

class RollCall {
 public:
  explicit RollCall(int nodes) : nodes_(nodes) {}

  /// The first node that has not come; `nodes`: all are here.
  [[nodiscard]] int missing() const { return missing_; }
  [[nodiscard]] bool complete() const { return missing_ == nodes_; }
  void came(int node, RoleInfo info);
  /// Its agent's connection has ended.
  void gone(const std::string& connection);
  /// In the order of node ranks.
  [[nodiscard]] std::vector<RoleInfo> take();

 private:
  int nodes_;
  int missing_ = 0;
  std::map<int, RoleInfo> here_;
  std::map<std::string, int> by_connection_;
};

}  // namespace muster::launcher
