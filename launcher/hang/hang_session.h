// SPDX-License-Identifier: Apache-2.0
// HangSession: how node 0 leads the nodes through a hang. A node reports that its workers hang; node 0 asks
// all nodes for a snapshot. When all have answered, or the time-out is over, there is one report, whichever
// node detected the hang. The hang lasts until none of its nodes hangs any more; a node that begins to hang
// meanwhile belongs to it. Pure: nodes' messages and times in, actions out. Owned by the HangMonitor of node
// 0.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "launcher/hang/snapshot.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

class HangSession {
 public:
  /// For the snapshots of all nodes; a node's tools have 60 s for its stacks.
  static constexpr std::chrono::seconds kSnapshotTimeout{75};

  struct Actions {
    bool ask = false;      // all nodes for a snapshot of hang number()
    bool known = false;    // announce that this hang was reported already
    bool publish = false;  // all snapshots that will come are here
    bool over = false;     // nobody hangs any more
  };

  explicit HangSession(int nodes) : nodes_(nodes) {}

  /// Workers of that node have begun to hang.
  Actions reported(int node, Instant now);
  /// Nothing: it could not be read, or the coordinator had no room for it. The node is not waited for.
  Actions snapshot(int node, int number, std::optional<NodeSnapshot> snapshot, Instant now);
  /// No worker of that node hangs any more.
  Actions over(int node);
  /// To be called at deadline().
  Actions tick(Instant now);
  [[nodiscard]] std::optional<Instant> deadline() const { return deadline_; }
  /// All idle times are counted anew: nothing more is expected of this hang.
  void forget();

  /// Of the present or last hang, from 1.
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool hanging() const { return !hanging_.empty(); }
  [[nodiscard]] const std::map<int, NodeSnapshot>& snapshots() const { return snapshots_; }

 private:
  [[nodiscard]] Actions publish();

  int nodes_;
  int number_ = 0;
  std::set<int> hanging_;  // nodes
  std::set<int> awaited_;  // nodes whose snapshot has not come
  std::map<int, NodeSnapshot> snapshots_;
  std::optional<Instant> deadline_;  // while nodes are asked
};

}  // namespace muster::launcher
