// SPDX-License-Identifier: Apache-2.0
// Device check: a process for each device of a node, what it reports, and the judgement of all devices: which
// one failed, hung, computed wrongly or is much slower than the others. Pure, but for run_checks().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::preflight {

/// What a device's process reports; sent as it is to the process that it was forked from.
struct Report {
  std::string_view step;               // the last one that it began; a literal
  std::optional<double> copy;          // bytes per second
  std::optional<double> gemm;          // floating-point operations per second
  std::optional<double> reduce;        // bytes per second
  std::optional<std::uint16_t> ready;  // its own steps are done; the port of its store, or 0
  bool done = false;
};

struct DeviceCheck : Report {
  enum class End {
    kRunning,
    kEnded,    // by itself; see exit_code and signal
    kLate,     // the deadline came first
    kStopped,  // it was stopped because another one had failed
  };
  std::string name;  // "GPU 3 (GPU-5a...)", "socket 1"
  bool is_gpu = false;
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

/// The others need not wait for it: it failed, ended or was given up.
[[nodiscard]] bool has_failed(const DeviceCheck& check);

/// A GPU with less than 70 % of the speed of the others is an error; a CPU, which may have other work, with
/// less than half is a warning.
[[nodiscard]] std::vector<Finding> judge(std::span<const DeviceCheck> checks,
                                         std::chrono::milliseconds timeout);

/// "8 GPUs: GEMM 631 to 645 TFLOP/s (median 640), memory copies ..., all-reduce ..."; empty: no speeds.
[[nodiscard]] std::string speeds_text(std::span<const DeviceCheck> checks);

/// A device's process to its runner.
class DeviceLink {
 public:
  explicit DeviceLink(int socket) : socket_(socket) {}
  Report report;
  /// The report as it is now.
  void send(std::string_view error = "");
  /// What ready is answered with, when all are: the port of rank 0's store. 0: there is nothing more to do.
  [[nodiscard]] std::uint16_t wait_to_go();

 private:
  int socket_;
};

struct DeviceProcess {
  std::string name;
  bool is_gpu = false;
  /// In a process of its own. An error is the device's.
  std::function<Result<void>(DeviceLink& link)> work;
};

/// Forks a process for each device of the node, takes their reports, lets them go on together once each is
/// ready, and ends them all within the deadline. A device whose process dies or hangs does not keep the
/// others waiting. Blocks; the process has one thread and no CUDA; it alone reaps its children. Failure: a
/// process that cannot be started is that device's error.
[[nodiscard]] std::vector<DeviceCheck> run_checks(std::span<const DeviceProcess> devices,
                                                  std::chrono::milliseconds timeout);

}  // namespace muster::preflight
