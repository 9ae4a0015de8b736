// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_metrics.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "launcher/hardware/device_choice.h"
#include "launcher/text/rank_ranges.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/env_contract.h"

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
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

template <class Number>
std::optional<Number> known(double value) {
  return std::isnan(value) ? std::nullopt : std::optional(static_cast<Number>(value));
}

}  // namespace

void put_gpu_metrics(MetricsText& out, const GpuMetrics& metrics) {
  const std::size_t count = std::min({metrics.gpus.size(), metrics.figures.size(), metrics.ranks.size()});
  struct Labels {
    std::string gpu, device, pci, rank;
  };
  std::vector<Labels> labels;
  for (std::size_t i = 0; i < count; ++i) {
    const int index = metrics.gpus[i].index;
    labels.push_back({fmt::format("{}", index), fmt::format("nvidia{}", index), bus_id(metrics.gpus[i].pci),
                      to_ranges(metrics.ranks[i])});
  }
  for (const GpuMetric& metric : kGpuMetrics) {
    out.family(metric.name, metric.type, metric.help);
    for (std::size_t i = 0; i < count; ++i) {
      const double value = metrics.figures[i].*metric.value;
      if (std::isnan(value)) continue;
      out.sample(value / metric.unit, {{"gpu", labels[i].gpu},
                                       {"UUID", metrics.gpus[i].uuid},
                                       {"pci_bus_id", labels[i].pci},
                                       {"device", labels[i].device},
                                       {"modelName", metrics.gpus[i].name},
                                       {"Hostname", metrics.host},
                                       {"rank", labels[i].rank},
                                       {"run_id", labels[i].rank.empty() ? "" : metrics.run_id}});
    }
  }
  if (count > 0)
    out.gauge("muster_gpu_figures_age_seconds", metrics.age_s,
              "Age of the figures of the GPUs; it grows where the driver does not answer.");
}

std::vector<std::vector<int>> ranks_of_gpus(const Job& job, const Environment& environment,
                                            std::span<const Gpu> gpus) {
  Environment of_workers = environment;
  if (!job.visible_devices.empty())
    of_workers.insert_or_assign(std::string(env::kCudaVisible), job.visible_devices);
  std::vector<std::vector<int>> out(gpus.size());
  for (int rank = 0; rank < job.local_world_size; ++rank) {
    const std::string address = device_of_worker(of_workers, rank, gpus).address;
    for (std::size_t i = 0; i < gpus.size(); ++i)
      if (!address.empty() && gpus[i].pci == address) out[i].push_back(rank);
  }
  return out;
}

namespace {

/// Before the nodes have met: none.
std::vector<std::vector<int>> world_ranks_of_gpus(const Job& job, const Environment& environment,
                                                  std::span<const Gpu> gpus,
                                                  const std::optional<Assignment>& assignment) {
  if (!assignment) return std::vector<std::vector<int>>(gpus.size());
  auto out = ranks_of_gpus(job, environment, gpus);
  for (std::vector<int>& ranks : out)
    for (int& rank : ranks) rank += assignment->base_rank;
  return out;
}

}  // namespace

void put_gpu_metrics(MetricsText& out, GpuWatch& watch, const Job& job, const Environment& environment,
                     const std::optional<Assignment>& assignment) {
  const Instant now = SteadyClock::now();
  const auto readings = watch.figures(now);
  const auto& gpus = watch.gpus();
  if (!readings || !gpus) return;
  put_gpu_metrics(out, {*gpus, readings->gpus, world_ranks_of_gpus(job, environment, *gpus, assignment),
                        job.host, job.run_id, seconds_between(readings->at, now)});
}

GpuReading reading_of(const Gpu& gpu, const Nvml::Figures& figures, std::vector<int> ranks) {
  GpuReading out;
  out.index = gpu.index;
  out.uuid = gpu.uuid;
  out.name = gpu.name;
  out.util_percent = known<double>(figures.util_percent);
  out.memory_used_bytes = known<std::uint64_t>(figures.memory_used_bytes);
  out.memory_total_bytes = known<std::uint64_t>(figures.memory_total_bytes);
  out.power_w = known<double>(figures.power_w);
  out.temperature_c = known<double>(figures.temperature_c);
  out.sm_clock_mhz = known<double>(figures.sm_clock_mhz);
  if (figures.xid > 0) out.xid = static_cast<std::int32_t>(figures.xid);
  out.ranks = std::move(ranks);
  return out;
}

std::vector<GpuReading> gpu_readings(GpuWatch& watch, const Job& job, const Environment& environment,
                                     const std::optional<Assignment>& assignment) {
  std::vector<GpuReading> out;
  const auto readings = watch.figures(SteadyClock::now());
  const auto& gpus = watch.gpus();
  if (!readings || !gpus) return out;
  auto ranks = world_ranks_of_gpus(job, environment, *gpus, assignment);
  for (std::size_t i = 0; i < std::min(gpus->size(), readings->gpus.size()); ++i)
    out.push_back(reading_of((*gpus)[i], readings->gpus[i], std::move(ranks[i])));
  return out;
}

}  // namespace muster::launcher
