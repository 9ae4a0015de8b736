// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_metrics.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

using Figures = Nvml::Figures;

constexpr double kBytesPerMiB = 1 << 20;

struct GpuMetric {
  std::string_view name;
  MetricType type;
  std::string_view help;
  double Figures::*value;
  double unit = 1;
};

constexpr GpuMetric kGpuMetrics[] = {
    {"DCGM_FI_DEV_GPU_UTIL", MetricType::kGauge, "GPU utilization (in %).", &Figures::util_percent},
    {"DCGM_FI_DEV_MEM_COPY_UTIL", MetricType::kGauge, "Memory utilization (in %).",
     &Figures::memory_util_percent},
    {"DCGM_FI_DEV_FB_USED", MetricType::kGauge, "Framebuffer memory used (in MiB).",
     &Figures::memory_used_bytes, kBytesPerMiB},
    {"DCGM_FI_DEV_FB_FREE", MetricType::kGauge, "Framebuffer memory free (in MiB).",
     &Figures::memory_free_bytes, kBytesPerMiB},
    {"DCGM_FI_DEV_POWER_USAGE", MetricType::kGauge, "Power draw (in W).", &Figures::power_w},
    {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", MetricType::kCounter,
     "Total energy consumption since boot (in mJ).", &Figures::energy_mj},
    {"DCGM_FI_DEV_GPU_TEMP", MetricType::kGauge, "GPU temperature (in C).", &Figures::temperature_c},
    {"DCGM_FI_DEV_MEMORY_TEMP", MetricType::kGauge, "Memory temperature (in C).",
     &Figures::memory_temperature_c},
    {"DCGM_FI_DEV_SM_CLOCK", MetricType::kGauge, "SM clock frequency (in MHz).", &Figures::sm_clock_mhz},
    {"DCGM_FI_DEV_MEM_CLOCK", MetricType::kGauge, "Memory clock frequency (in MHz).",
     &Figures::memory_clock_mhz},
    {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS", MetricType::kGauge,
     "Current clock event reasons (bitmask of DCGM_CLOCKS_EVENT_REASON_*).", &Figures::clock_reasons},
    {"DCGM_FI_DEV_XID_ERRORS", MetricType::kGauge, "Value of the last XID error encountered.", &Figures::xid},
    {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", MetricType::kCounter, "Total number of single-bit volatile ECC errors.",
     &Figures::corrected_ecc},
    {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", MetricType::kCounter, "Total number of double-bit volatile ECC errors.",
     &Figures::uncorrected_ecc},
};

/// NVML writes "00000000:3B:00.0" where sysfs has "0000:3b:00.0".
std::string bus_id(std::string_view address) {
  const auto colon = address.find(':');
  if (colon == std::string_view::npos) return {};
  std::string out = fmt::format("{:0>8}{}", address.substr(0, colon), address.substr(colon));
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

}  // namespace

WorkerDevice device_of_worker(const Job& job, const Environment& environment, int local_rank,
                              std::span<const Gpu> gpus) {
  const auto inherited = lookup(environment, env::kCudaVisible);
  return device_of_worker(job.visible_devices.empty() ? inherited : job.visible_devices, local_rank, gpus);
}

NodeGpus gpu_readings(GpuWatch& watch, const Job& job, const Environment& environment,
                      const std::optional<Assignment>& assignment) {
  NodeGpus out;
  const Instant now = SteadyClock::now();
  const auto readings = watch.figures(now);
  const auto& gpus = watch.gpus();
  if (!readings || !gpus) return out;
  out.age_s = seconds_between(readings->at, now);
  for (std::size_t i = 0; i < std::min(gpus->size(), readings->gpus.size()); ++i)
    out.gpus.push_back({(*gpus)[i], readings->gpus[i], {}});
  if (!assignment) return out;  // the nodes have not met
  for (int rank = 0; rank < job.local_world_size; ++rank) {
    const WorkerDevice device = device_of_worker(job, environment, rank, *gpus);
    for (GpuReading& each : out.gpus)
      if (!device.address.empty() && each.gpu.pci == device.address)
        each.ranks.push_back(assignment->base_rank + rank);
  }
  return out;
}

void put_gpu_metrics(MetricsText& out, const NodeGpus& node, std::string_view host, std::string_view run_id) {
  struct Labels {
    std::string gpu, device, pci, rank;
  };
  std::vector<Labels> labels;
  labels.reserve(node.gpus.size());
  for (const GpuReading& each : node.gpus)
    labels.push_back({fmt::format("{}", each.gpu.index), fmt::format("nvidia{}", each.gpu.index),
                      bus_id(each.gpu.pci), to_ranges(each.ranks)});
  for (const GpuMetric& metric : kGpuMetrics) {
    out.family(metric.name, metric.type, metric.help);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const GpuReading& each = node.gpus[i];
      const double value = each.figures.*metric.value;
      if (std::isnan(value)) continue;
      out.sample(value / metric.unit, {{"gpu", labels[i].gpu},
                                       {"UUID", each.gpu.uuid},
                                       {"pci_bus_id", labels[i].pci},
                                       {"device", labels[i].device},
                                       {"modelName", each.gpu.name},
                                       {"Hostname", host},
                                       {"rank", labels[i].rank},
                                       {"run_id", labels[i].rank.empty() ? "" : run_id}});
    }
  }
  if (!labels.empty())
    out.gauge("muster_gpu_figures_age_seconds", node.age_s,
              "Age of the figures of the GPUs; it grows where the driver does not answer.");
}

}  // namespace muster::launcher
