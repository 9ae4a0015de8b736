// SPDX-License-Identifier: Apache-2.0
// Device check: what one process of muster-preflight reports about its device, read line by line, and the
// judgement of all devices of a node: which one failed, hung, computed wrongly or is much slower than the
// others. Pure, but for run_checks(); main.cc writes the lines. Failure: a line that is none of
// them is an error of the device.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::preflight {

struct DeviceCheck {
  enum class End {
    kRunning,
    kEnded,    // by itself; see exit_code and signal
    kLate,     // the deadline came first
    kStopped,  // it was stopped because another one had failed
  };
  std::string name;  // "GPU 3 (GPU-5a...)", "socket 1"
  bool is_gpu = false;
  std::string step;                    // the last one that it began
  std::optional<double> copy;          // bytes per second
  std::optional<double> gemm;          // floating-point operations per second
  std::optional<double> reduce;        // bytes per second
  std::optional<std::uint16_t> ready;  // its own steps are done; the port of its store, or 0
  bool done = false;
  std::string error;  // in its own words
  End end = End::kRunning;
  int exit_code = 0;
  int signal = 0;  // what killed it; 0: none
};

/// What is wrong with the node, or only worth a warning.
struct Finding {
  bool error = false;
  std::string text;

  friend bool operator==(const Finding&, const Finding&) = default;
};

/// One line, without its newline.
void read_line(DeviceCheck& check, std::string_view line);

/// The others need not wait for it: it failed, ended or was given up.
[[nodiscard]] bool has_failed(const DeviceCheck& check);

/// A GPU with less than 70 % of the speed of the others is an error; a CPU, which may have other work, with
/// less than half is a warning.
[[nodiscard]] std::vector<Finding> judge(std::span<const DeviceCheck> checks,
                                         std::chrono::milliseconds timeout);

/// "8 GPUs: GEMM 631 to 645 TFLOP/s (median 640), memory copies ..., all-reduce ..."; empty: no speeds.
[[nodiscard]] std::string speeds_text(std::span<const DeviceCheck> checks);

struct DeviceProcess {
  std::string name;
  bool is_gpu = false;
  std::vector<std::string> arguments;  // of its process, after the program's name
};

/// Starts muster-preflight once for each device of the node, reads what the processes report
///, lets them go on together once each has done its own steps, and ends them all within the
/// deadline. A device whose process dies or hangs does not keep the others waiting. Blocks; one thread; it
/// alone reaps its children. Failure: a process that cannot be started is that device's error.
[[nodiscard]] std::vector<DeviceCheck> run_checks(const std::string& program,
                                                  std::span<const DeviceProcess> devices,
                                                  std::chrono::milliseconds timeout);

}  // namespace muster::preflight
