// SPDX-License-Identifier: Apache-2.0
// GpuReading: what one GPU of this node does at one moment, as plain values: for the job's status page,
// /metrics and the messages between nodes (text/node_message.h). What is not known is left out. Whoever asks
// the driver makes it; nothing of NVML is here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::launcher {

struct GpuReading {
  std::int32_t index = 0;  // nvidia-smi's
  std::string uuid, name;
  std::optional<double> util_percent;  // share of the last sampling period in which a kernel ran
  std::optional<std::uint64_t> memory_used_bytes, memory_total_bytes;
  std::optional<double> power_w, temperature_c, sm_clock_mhz;
  std::optional<std::int32_t> xid;  // of the last fault since the agent began; nothing: there was none
  std::vector<std::int32_t> ranks;  // that use it, if each takes the one of its LOCAL_RANK
};

}  // namespace muster::launcher
