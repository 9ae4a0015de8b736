// SPDX-License-Identifier: Apache-2.0
// What is known of workers that hang, as values: RankSnapshot of one worker, NodeSnapshot of one node's
// workers, HangReport of all nodes' with who stands out, HangVerdict as node 0 announces it. HangMonitor
// fills them, outliers.cc judges them, hang_report.h prints them; they travel in control::Hang as
// text/node_message.h has it. Pure. Where a snapshot would be too large, stacks are left out before ranks
// are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/job/restart_policy.h"
#include "launcher/progress/collective_state.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// One thread, from /proc.
struct ThreadState {
  int id = 0;
  std::string name = {};
  char state = '?';       // R, S, D, T, t, Z
  std::string call = {};  // "read(5 -> pipe:[8123])"; empty: not in a system call, or not known
  std::string wait = {};  // where in the kernel: "pipe_read"
};

/// Of one thread, innermost first; names of functions.
struct ThreadStack {
  std::string title = {};  // "Thread 1 (LWP 812)" as the tool prints it
  std::vector<std::string> functions = {};
};

struct RankSnapshot {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  int node = 0;               // of the world
  std::string ended = {};     // "exited with code 0"; empty: it runs
  bool watched = true;        // it reports progress, or has to
  std::string paused = {};    // why its idle time means nothing: "announced a pause"; empty: it does
  bool stalled = false;       // idle for too long
  Millis idle_time{0};        // of a stalled one
  std::string progress = {};  // as it reported last
  std::vector<CollectiveState> collectives = {};  // that its runtime's groups began last
  std::string source = {};                        // of its signs of life: "progress", "collectives", "output"
  std::vector<ThreadState> threads = {};          // the first is the process' own
  std::string tool = {};                          // that read the stacks: "gdb"; empty: none did
  std::string tool_problem = {};                  // why not
  std::vector<ThreadStack> stacks = {};           // the first is the main thread's

  [[nodiscard]] bool runs() const { return ended.empty(); }
};

/// Ranks that stand out among those of a hang.
struct Outliers {
  std::vector<int> ranks = {};  // of the world, ascending; empty: nobody does
  std::string why = {};
};
[[nodiscard]] Outliers find_outliers(std::span<const RankSnapshot> ranks);

struct HangNode {
  int node = 0;
  std::string host = {};  // empty: not known
  bool answered = false;  // sent its snapshot in time
};

struct HangReport {
  std::string host = {};
  std::vector<HangNode> nodes = {};  // by node rank; empty: of one node
  std::int64_t wall_time_s = 0;
  Millis idle_time{0};  // the longest
  Millis limit{0};
  std::vector<RankSnapshot> ranks = {};  // by rank
  Outliers outliers;
  int left_out = 0;                  // ranks for which a node's message had no room
  std::optional<Millis> over_after;  // once it is over: how long it took
};

/// What one node knows of a hang.
struct NodeSnapshot {
  HangReport report;                // of this node's ranks
  bool hanging = false;             // still, after the stacks were read
  OnHang action = OnHang::kReport;  // what is asked for here
};

/// What node 0 announces when the report is written.
struct HangVerdict {
  std::string text = {};  // one line
  Outliers outliers = {};
  bool ends = false;      // the attempt ends for it
  bool paused = false;    // a rank announced a pause: idle times are counted anew
  int rank = -1;          // that the job's report is to name
  std::string line = {};  // its text there
};

/// At most kMaxNodeMessageBytes.
[[nodiscard]] std::string to_message(NodeSnapshot snapshot);

/// One report of all nodes; those of 0 to `nodes` that are not in `snapshots` have not answered.
[[nodiscard]] HangReport merged(const std::map<int, NodeSnapshot>& snapshots, int nodes);

}  // namespace muster::launcher
