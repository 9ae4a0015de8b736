// SPDX-License-Identifier: Apache-2.0
// GpuWatch: a process of its own that asks NVML which GPUs are here and then waits for their Xid events, so
// that faults are known where the kernel's log may not be read, and no call into the driver holds the agent.
// (A thread could not be stopped while NVML waits, and a wedged driver would keep the agent from ending; a
// process is killed.) Started by main on nodes with GPUs; read by PostMortem when a worker has failed.
// Drivers without Xid events, and containers where they are not permitted, give the GPUs only. It also reads
// what the GPUs do, once a second while somebody looks, into a page that it shares with the agent: a driver
// that is wedged makes the figures old, and holds nobody. And it tells, when asked, who holds the GPUs. One
// loop.
// Costs a fork, and no time until it is read. Source: NVML API reference, "Event Handling Methods".
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nvml.h"
#include "launcher/process/helper_process.h"
#include "launcher/report/gpu_holders.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

class GpuWatch {
 public:
  struct Readings {
    std::vector<Nvml::Figures> gpus;  // in the order of gpus(), at most kMostGpus
    Instant at{};
  };
  static constexpr std::size_t kMostGpus = 64;

  [[nodiscard]] static Result<GpuWatch> start(const GpuPaths& paths);

  [[nodiscard]] pid_t pid() const { return process_.pid(); }

  /// Readable when there is something to take.
  [[nodiscard]] int output() const { return process_.channel(); }

  /// Nothing: the driver has not answered yet. Does not block.
  [[nodiscard]] const std::optional<std::vector<Gpu>>& gpus();

  /// What has come since the last call, as the kernel's log would have it (kernel_log.h):
  /// "NVML: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus (GPU-5a..)". Does not block.
  [[nodiscard]] std::vector<std::string> take_new();

  /// Asks for who holds the GPUs now. Does not block.
  void ask_holders();
  /// Nothing: nobody has asked, or the driver has not answered yet. Does not block.
  [[nodiscard]] const std::optional<std::vector<GpuHolder>>& holders();
  [[nodiscard]] bool owes_holders() const { return holders_asked_ && !holders_; }

  /// What was read last, and asks for more: for a minute from now on it is read each second. The first call
  /// finds nothing. Does not block.
  [[nodiscard]] std::optional<Readings> figures(Instant now);

 private:
  struct Page;  // of figures
  struct Unmap {
    void operator()(Page* page) const;
  };
  friend void serve_gpus(const GpuPaths& paths, Page& page, int channel);

  GpuWatch(std::unique_ptr<Page, Unmap> page, HelperProcess process)
      : page_(std::move(page)), process_(std::move(process)) {}
  bool read_one();

  std::unique_ptr<Page, Unmap> page_;  // with the process
  HelperProcess process_;
  Instant asked_{};  // for figures
  bool holders_asked_ = false;
  std::optional<std::vector<GpuHolder>> holders_;
  bool closed_ = false;
  std::optional<std::vector<Gpu>> gpus_;
  std::vector<std::string> events_;
};

/// The text of an event; `instance`: the GPU instance of MIG, if it is of one. Pure.
[[nodiscard]] std::string xid_line(const Gpu& gpu, int number, std::optional<unsigned> instance);

}  // namespace muster::launcher
