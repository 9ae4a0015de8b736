// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/snapshot.h"

#include <algorithm>

#include "launcher/text/node_message.h"

namespace muster::launcher {
namespace {

constexpr Millis kMostIdle = std::chrono::hours(24 * 365);  // a message may have any number

/// Leaves out more with each round: first most threads and stacks, then all but the main thread's, then those
/// and all collectives but four, then the ranks.
void thin(NodeSnapshot& snapshot, int round) {
  const std::size_t threads = round == 0 ? 8 : round == 1 ? 1 : 0;
  auto& ranks = snapshot.report.ranks;
  if (round > 2) {
    const auto left_out = static_cast<int>(ranks.size());
    snapshot.report = {};  // of what another node sent, texts alone may be too much
    snapshot.report.left_out = left_out;
  }
  for (RankSnapshot& rank : ranks) {
    rank.threads.resize(std::min(rank.threads.size(), threads));
    rank.stacks.resize(std::min(rank.stacks.size(), threads));
    if (round < 2) continue;
    // A rank that waits says more than one that does not.
    std::stable_partition(rank.collectives.begin(), rank.collectives.end(),
                          [](const CollectiveState& state) { return state.state == PageState::kBegun; });
    rank.collectives.resize(std::min<std::size_t>(rank.collectives.size(), 4));
  }
}

}  // namespace

std::string to_message(NodeSnapshot snapshot) {
  std::string out = to_node_message(snapshot);
  for (int round = 0; out.size() > kMaxNodeMessageBytes; ++round) {
    thin(snapshot, round);
    out = to_node_message(snapshot);
  }
  return out;
}

HangReport merged(const std::map<int, NodeSnapshot>& snapshots, int nodes) {
  HangReport out;
  for (int node = 0; node < nodes; ++node) {
    const auto found = snapshots.find(node);
    HangNode& entry = out.nodes.emplace_back();
    entry.node = node;
    if (found == snapshots.end()) continue;
    const HangReport& report = found->second.report;
    entry.host = report.host;
    entry.answered = true;
    if (out.host.empty()) out.host = report.host, out.wall_time_s = report.wall_time_s;
    if (report.idle_time > out.idle_time)
      out.idle_time = std::min(report.idle_time, kMostIdle), out.limit = report.limit;
    if (report.left_out > 0 && report.left_out <= 1'000'000) out.left_out += report.left_out;
    for (const RankSnapshot& rank : report.ranks) {
      out.ranks.push_back(rank);
      out.ranks.back().node = node;
    }
  }
  out.outliers = find_outliers(out.ranks);
  return out;
}

}  // namespace muster::launcher
