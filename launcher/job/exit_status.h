// SPDX-License-Identifier: Apache-2.0
// Exit status: how a worker ended, as a value, and what muster itself exits with. The one table of codes is
// kExitCodes. torchrun exits 1 for every failure; muster passes on the code of the first worker that failed,
// and 128+n for signal n, as shells do. Pure.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "rendezvous/protocol/world.h"

namespace muster::launcher {

inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRendezvous = 69;
inline constexpr int kExitSystem = 71;
inline constexpr int kExitPreflight = 74;
inline constexpr int kExitPortInUse = 75;
inline constexpr int kExitPeerLost = 76;
inline constexpr int kExitRefused = 78;
/// Also what a worker ends with that has saved its state (kExitPreempted of muster/preemption.h).
inline constexpr int kExitPreempted = 85;
inline constexpr int kExitNoProgress = 86;
static_assert(kExitNoProgress == kNoProgressExitCode);
inline constexpr int kExitHang = 124;  // as of timeout(1)
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

struct ExitCode {
  int code;
  std::string_view meaning;
};

/// Codes muster itself makes. A worker may exit with any of them too; the last line on stderr tells which it
/// was.
inline constexpr std::array kExitCodes = {
    ExitCode{kExitOk, "every worker succeeded"},
    ExitCode{kExitUsage, "usage or configuration"},
    ExitCode{kExitRendezvous, "rendezvous failed: nodes or the coordinator are missing"},
    ExitCode{kExitSystem, "the system refused something: processes, descriptors, memory, disk"},
    ExitCode{kExitPreflight, "a node is unhealthy (--preflight) or not reached (--doctor)"},
    ExitCode{kExitPortInUse, "the port of the store, the coordinator or --metrics-addr is in use"},
    ExitCode{kExitPeerLost, "another node or the coordinator was lost while the job ran"},
    ExitCode{kExitRefused, "the coordinator refused this node: secret, version, --nnodes, --node-rank"},
    ExitCode{kExitPreempted, "preempted: workers ended with this code of their own; start the job again"},
    ExitCode{kExitNoProgress, "the last restarts gained no step (--max-restarts-without-progress)"},
    ExitCode{kExitHang, "a worker hung (--on-hang=stop, or no restart was left)"},
    ExitCode{kExitNotExecutable, "the program cannot be executed"},
    ExitCode{kExitNotFound, "the program was not found"},
};

/// How a process ended, from waitid's CLD_ code and status.
struct ProcessEnd {
  int code = 0;       // exit code, when signal is 0
  int signal = 0;     // what killed it, else 0
  bool core = false;  // a core was dumped

  [[nodiscard]] bool ok() const { return code == 0 && signal == 0; }
  [[nodiscard]] bool preempted() const { return code == kExitPreempted && signal == 0; }
  /// torchrun's notation: the exit code, or minus the signal.
  [[nodiscard]] int torchrun_code() const { return signal != 0 ? -signal : code; }
  /// What a shell would report: the exit code, or 128 + signal.
  [[nodiscard]] int shell_code() const { return signal != 0 ? 128 + signal : code; }
};

/// "SIGTERM"; "SIG34" for one without a name.
[[nodiscard]] std::string signal_name(int signal);

/// "exited with code 7", "was killed by SIGSEGV (core dumped)".
[[nodiscard]] std::string how_it_ended(const ProcessEnd& end);

/// A program's own doing, or its memory's: SIGSEGV, SIGABRT and their like.
[[nodiscard]] bool is_crash_signal(int signal);

/// The number of "SIGTERM" or "TERM"; 0 if there is no such signal.
[[nodiscard]] int signal_number(std::string_view name);

}  // namespace muster::launcher
