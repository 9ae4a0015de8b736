// SPDX-License-Identifier: Apache-2.0
// Preflight: is this node healthy enough for the job? judge() is pure: readings in, findings out, each one
// line that names what is wrong and what to do. run_preflight() takes the readings in a helper process with a
// deadline, because a driver or a disk that hangs would block its caller: a node whose check does not return
// is unhealthy, and the step that hung is named. Called by main before anything is opened or started; an
// unhealthy node does not join, so that another one takes its place. Off unless asked for: without GPUs it
// takes 0.3 ms, with GPUs as long as NVML takes to start.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/checks/gpu_software.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nvml.h"
#include "launcher/hardware/topology.h"
#include "launcher/job/job.h"
#include "launcher/process/helper_process.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct PortReading {
  std::string adapter;  // "mlx5_0"
  std::string port;     // "1"
  std::string state;    // "ACTIVE", "DOWN", "INIT" ...; empty: not told
  std::string physical;
};

struct DiskReading {
  std::string path, use = {};
  bool writable = true;
  std::uint64_t free_bytes = 0;
  std::uint64_t free_files = 0;
};

struct Readings {
  std::string driver_error;  // empty: it answers, or there is none
  std::vector<Nvml::GpuHealth> gpus;
  GpuSoftware software;            // the driver's versions only
  std::string mapping;             // of CUDA_VISIBLE_DEVICES; empty: no GPU, or not known
  std::vector<PortReading> ports;  // InfiniBand's and RoCE's
  std::vector<DiskReading> disks;
  std::uint64_t descriptors = 0;         // that this process may raise its limit to
  std::uint64_t descriptors_needed = 0;  // by the agent, for so many workers
  bool memory_lockable = true;           // or there is no RDMA adapter that would need it
  bool clock_synchronised = true;
};

struct Finding {
  bool error = false;  // else a warning
  std::string text;
  bool note = false;  // nothing is wrong: what is there

  friend bool operator==(const Finding&, const Finding&) = default;
};

/// `share_gpus`: --oversubscribe, others may hold memory of the GPUs.
[[nodiscard]] std::vector<Finding> judge(const Readings& readings, bool share_gpus);

/// What the other nodes are told, on one line; empty: the node is healthy.
[[nodiscard]] std::string errors_text(const std::vector<Finding>& findings);

struct PreflightJob {
  GpuPaths gpu_paths;
  std::string rdma = "/sys/class/infiniband";
  std::optional<std::vector<int>> gpus;        // physical ones of the job; nothing: those that are visible
  std::optional<std::string> visible_devices;  // CUDA_VISIBLE_DEVICES, as the workers get it
  std::vector<DiskReading> disks;              // path, or what is to be made, and use
  std::string program;                         // of a worker
  Environment environment;
  int workers = 1;
  bool one_gpu_each = false;  // --virtual-local-rank
  bool share_gpus = false;
};

/// What is to be read for a job: its GPUs, where its logs go, the memory that processes share.
[[nodiscard]] PreflightJob plan_preflight(const Job& job, bool share_gpus, const Environment& environment);

/// The ports below a directory such as /sys/class/infiniband.
[[nodiscard]] std::vector<PortReading> read_ports(const std::string& directory);

/// Before anything asks the driver in this process, which would wait for it without a deadline.
struct DriverCheck {
  std::optional<Finding> finding;          // it does not answer
  std::unique_ptr<HelperProcess> process;  // holds it open: without persistence mode it begins anew each time
};
[[nodiscard]] DriverCheck check_driver(const GpuPaths& paths, std::chrono::milliseconds timeout);

/// Calls `step` before each step.
[[nodiscard]] Readings take_readings(const PreflightJob& job,
                                     const std::function<void(std::string_view)>& step);

/// Takes and judges the readings in a helper process, within `timeout`.
[[nodiscard]] std::vector<Finding> run_preflight(const PreflightJob& job, std::chrono::milliseconds timeout);

/// The devices that muster-preflight is to check, as its arguments: "GPU 3 (GPU-c)=gpu:0" for each GPU that
/// CUDA shows (`visible`: CUDA_VISIBLE_DEVICES of the workers), "GPU slice MIG-x=slice:MIG-x".
[[nodiscard]] std::vector<std::string> gpu_devices(std::span<const Gpu> gpus,
                                                   std::optional<std::string_view> visible);
/// Without GPUs one process per worker, as far as there are cores, and one per socket at least, each on the
/// CPUs of its socket: "socket 0, process 1=cpus:0,1".
[[nodiscard]] std::vector<std::string> cpu_devices(const Topology& topology, int workers);

struct DeviceReport {
  std::vector<Finding> findings;
  std::string speeds;  // what was measured, for people
};
/// The full check: runs muster-preflight, which lies beside this program, on every device of the job.
[[nodiscard]] DeviceReport check_devices(const PreflightJob& job, const Environment& environment,
                                         std::chrono::milliseconds timeout);

}  // namespace muster::launcher
