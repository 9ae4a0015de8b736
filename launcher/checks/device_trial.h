// SPDX-License-Identifier: Apache-2.0
// Device trial: what one process of muster-preflight says about its device, read line by line, and the
// judgement of all of a node: who failed, hung, computed wrongly or is much slower than the others. Pure; the
// processes are trial_runner.h's. The words are those of worker_runtime/preflight/main.cc. Failure: a line
// that is none of them is the device's defect.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/checks/preflight.h"
#include "launcher/job/exit_status.h"

namespace muster::launcher {

struct DeviceTrial {
  enum class End {
    kUnknown,  // it still runs
    kEnded,    // by itself; see `process`
    kLate,     // the deadline came first
    kStopped,  // it was stopped because another one had failed
  };
  std::string name;  // "GPU 3 (GPU-5a...)", "socket 1"
  bool is_gpu = false;
  std::string step;                    // the last that it began
  std::optional<double> copy;          // bytes per second
  std::optional<double> gemm;          // floating-point operations per second
  std::optional<double> reduce;        // bytes per second
  std::optional<std::uint16_t> ready;  // alone it is through; the port of its store, or 0
  bool done = false;
  std::string defect;  // in its own words
  End end = End::kUnknown;
  ProcessEnd process;

  friend bool operator==(const DeviceTrial&, const DeviceTrial&) = default;
};

/// One line, without its newline.
void take_line(DeviceTrial& trial, std::string_view line);

/// Nobody else has to wait for it any more: through, ended, or given up.
[[nodiscard]] bool has_failed(const DeviceTrial& trial);

/// `patience`: the deadline that was set. A GPU is unfit with less than 70 % of what its neighbours do; a
/// CPU, which may have guests, is only warned of, with less than half.
[[nodiscard]] std::vector<Finding> judge_trials(std::span<const DeviceTrial> trials,
                                                std::chrono::milliseconds patience);

/// "8 GPUs: GEMM 631 to 645 TFLOP/s (median 640), memory ..., all-reduce ..."; empty: nothing was measured.
[[nodiscard]] std::string figures_text(std::span<const DeviceTrial> trials);

}  // namespace muster::launcher
