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

#include "launcher/hardware/gpu_reading.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nvml.h"
#include "launcher/job/job.h"
#include "launcher/report/gpu_watch.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/metrics_text.h"

namespace muster::launcher {

struct GpuMetrics {
  std::span<const Gpu> gpus;
  std::span<const Nvml::Figures> figures;   // of each
  std::span<const std::vector<int>> ranks;  // that use each
  std::string_view host, run_id;
  double age_s = 0;  // of the figures
};

void put_gpu_metrics(MetricsText& out, const GpuMetrics& metrics);

/// Of the GPUs as they were read last, with the ranks that `assignment` has given them; nothing before the
/// first reading.
void put_gpu_metrics(MetricsText& out, GpuWatch& watch, const Job& job, const Environment& environment,
                     const std::optional<Assignment>& assignment);

/// Which local ranks use each of the GPUs, if each takes the one of its LOCAL_RANK.
[[nodiscard]] std::vector<std::vector<int>> ranks_of_gpus(const Job& job, const Environment& environment,
                                                          std::span<const Gpu> gpus);

/// The same for the messages between nodes.
[[nodiscard]] GpuReading reading_of(const Gpu& gpu, const Nvml::Figures& figures, std::vector<int> ranks);
[[nodiscard]] std::vector<GpuReading> gpu_readings(GpuWatch& watch, const Job& job,
                                                   const Environment& environment,
                                                   const std::optional<Assignment>& assignment);

}  // namespace muster::launcher
