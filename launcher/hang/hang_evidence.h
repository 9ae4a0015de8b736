// SPDX-License-Identifier: Apache-2.0
// RankEvidence: what is known of one worker at the moment of a hang; HangReport: of all of a node or of all
// nodes, and who is to blame as far as that shows. Plain values: gathered by hang_monitor.h, carried by
// hang_part.h, judged by odd_one_out.h, shown by hang_report.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/progress/collective_word.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// One thread as /proc tells of it.
struct ThreadState {
  int id = 0;
  std::string name = {};
  char state = '?';       // R, S, D, T, t, Z
  std::string call = {};  // "read(5 -> pipe:[8123])"; empty: not in a system call, or not known
  std::string wait = {};  // where in the kernel: "pipe_read"
  std::vector<std::string> kernel_stack = {};  // readable by root only

  friend bool operator==(const ThreadState&, const ThreadState&) = default;
};

/// Of one thread, innermost first; names of functions.
struct ThreadStack {
  std::string title = {};  // "Thread 1 (LWP 812)" as the tool says
  std::vector<std::string> functions = {};

  friend bool operator==(const ThreadStack&, const ThreadStack&) = default;
};

struct RankEvidence {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  int node = 0;               // of the world
  bool python = false;        // it runs a Python interpreter
  std::string ended = {};     // "exited with code 0"; empty: it runs
  bool judged = true;         // it gives signs of life, or has to
  std::string patience = {};  // why its silence says nothing: "has asked for patience"; empty: it does
  bool silent = false;        // for too long
  Millis silence{0};
  std::string word = {};                         // its last about its progress
  std::vector<CollectiveWord> collectives = {};  // that its runtime's groups began last
  std::string source = {};  // what its life was judged by: "progress", "heartbeat", "output", ...
  std::vector<ThreadState> threads = {};  // the first is the process' own
  std::string tool = {};                  // that got the stacks: "gdb"; empty: none did
  std::string tool_problem = {};          // why not
  std::vector<ThreadStack> stacks = {};   // the first is the main thread's
  std::vector<std::string> tool_output = {};

  [[nodiscard]] bool runs() const { return ended.empty(); }
  friend bool operator==(const RankEvidence&, const RankEvidence&) = default;
};

/// Who stands out.
struct Odd {
  std::vector<int> ranks = {};  // of the world, ascending; empty: nobody does
  std::string why = {};

  friend bool operator==(const Odd&, const Odd&) = default;
};

struct HangNode {
  int node = 0;
  std::string host = {};  // empty: not known
  bool answered = false;  // said in time what its ranks do

  friend bool operator==(const HangNode&, const HangNode&) = default;
};

struct HangReport {
  std::string host = {};
  std::vector<HangNode> nodes = {};  // by node rank; empty: of one node
  std::int64_t wall_time_s = 0;
  Millis silence{0};
  Millis limit{0};
  std::vector<RankEvidence> ranks = {};  // by rank
  Odd odd;
  /// Once it is over: how long it took.
  std::optional<Millis> over_after;

  friend bool operator==(const HangReport&, const HangReport&) = default;
};

}  // namespace muster::launcher
