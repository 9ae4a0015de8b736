// SPDX-License-Identifier: Apache-2.0
// GpuMetrics: what the GPUs do, for Prometheus, under the names, units, help texts and labels of NVIDIA's
// dcgm-exporter, so that boards and alerts made for it work; and `rank` and `run_id` of the worker that uses
// the GPU. Pure. Called for an agent's /metrics. What NVML does not tell is left out. Source: dcgm-exporter's
// etc/default-counters.csv, and its labels.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "launcher/hardware/device_choice.h"
#include "launcher/hardware/gpus.h"
#include "launcher/job/job.h"
#include "launcher/report/gpu_watch.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/metrics_text.h"

namespace muster::launcher {

/// Of a worker of the job. `environment`: the agent's.
[[nodiscard]] WorkerDevice device_of_worker(const Job& job, const Environment& environment, int local_rank,
                                            std::span<const Gpu> gpus);

struct NodeGpus {
  std::vector<GpuReading> gpus;
  double age_s = 0;  // of the figures
};

/// As they were read last, with the ranks that `assignment` has given them; none before the first reading.
[[nodiscard]] NodeGpus gpu_readings(GpuWatch& watch, const Job& job, const Environment& environment,
                                    const std::optional<Assignment>& assignment);

void put_gpu_metrics(MetricsText& out, const NodeGpus& node, std::string_view host, std::string_view run_id);

}  // namespace muster::launcher
