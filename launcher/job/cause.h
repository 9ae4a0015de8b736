// SPDX-License-Identifier: Apache-2.0
// Cause: why one worker ended, as a class with a name and the words of the evidence. Values, made by
// error_watch.h (from what a worker wrote) and job_report.h (from all that is known), read by the report.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace muster::launcher {

enum class CauseClass {
  kNone,  // it ended with 0
  kException,
  kAssertion,
  kSanitizer,
  kCrash,
  kHostMemory,
  kGpuMemory,
  kGpuFault,
  kGpuUnavailable,  // CUDA or a library of it could not begin: mostly, others hold the GPU or its memory
  kNetwork,         // NCCL, gloo, store: a collective or a connection failed
  kPeerGone,        // another process closed its connection: most likely it failed first
  kSignal,          // from outside
  kExitCode,        // nothing else is known
  kNotStarted,
  kHang,       // it gave no sign of life, and muster ended it for that
  kStopped,    // by muster, because of another failure
  kPreempted,  // it saved its state and ended, to be started again
  kLast = kPreempted
};

struct CauseName {
  CauseClass kind;
  std::string_view id;     // in report.json
  std::string_view title;  // on the terminal
};

/// In the order of CauseClass.
inline constexpr std::array kCauseNames = {
    CauseName{CauseClass::kNone, "none", "no failure"},
    CauseName{CauseClass::kException, "exception", "uncaught exception"},
    CauseName{CauseClass::kAssertion, "assertion", "failed assertion"},
    CauseName{CauseClass::kSanitizer, "sanitizer", "sanitizer finding"},
    CauseName{CauseClass::kCrash, "crash", "crash"},
    CauseName{CauseClass::kHostMemory, "host-out-of-memory", "out of host memory"},
    CauseName{CauseClass::kGpuMemory, "gpu-out-of-memory", "out of GPU memory"},
    CauseName{CauseClass::kGpuFault, "gpu-fault", "GPU fault"},
    CauseName{CauseClass::kGpuUnavailable, "gpu-unavailable", "GPU not available"},
    CauseName{CauseClass::kNetwork, "network", "communication failure"},
    CauseName{CauseClass::kPeerGone, "peer-gone", "another process closed its connection"},
    CauseName{CauseClass::kSignal, "signal", "signal from outside"},
    CauseName{CauseClass::kExitCode, "exit-code", "exit code"},
    CauseName{CauseClass::kNotStarted, "not-started", "not started"},
    CauseName{CauseClass::kHang, "hang", "hang"},
    CauseName{CauseClass::kStopped, "stopped", "stopped by muster"},
    CauseName{CauseClass::kPreempted, "preempted", "preempted"},
};

[[nodiscard]] constexpr const CauseName& name_of(CauseClass kind) {
  return kCauseNames[static_cast<std::size_t>(kind)];
}

struct Cause {
  CauseClass kind = CauseClass::kNone;
  std::string text = {};   // "ValueError: boom"
  std::string where = {};  // "train.py:12"; empty: not known
};

}  // namespace muster::launcher
