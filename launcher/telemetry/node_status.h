// SPDX-License-Identifier: Apache-2.0
// NodeStatus: what one node's workers and GPUs do at one moment, as nodes send it each other
// (text/node_message.h), and GET /api/status, which is made of those of all nodes. Pure values and functions:
// the names of the JSON are in launcher/reference.md. Made and kept by StatusExchange.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hardware/gpus.h"
#include "launcher/job/job.h"
#include "launcher/progress/stragglers.h"
#include "launcher/telemetry/telemetry.h"

namespace muster::launcher {

/// What is not known is left out.
struct RankStatus {
  std::int32_t rank = 0, local_rank = 0, pid = 0;
  std::int32_t state = 0;  // a WorkerState
  std::optional<std::int64_t> epoch, step, steps;
  std::string phase;
  std::optional<double> loss, throughput, resident_bytes, cpu_s, threads;
  std::optional<double> idle_s;  // since its progress was seen to change
  RankPace pace;
};

struct NodeStatus {
  std::int32_t node = 0;
  std::string host, state, status_address;
  std::vector<RankStatus> ranks;
  std::vector<GpuReading> gpus;
  std::vector<JobEvent> events;  // its last ones
};

struct NodeSeen {
  NodeStatus status;
  Instant at{};  // when it came
};
using NodesSeen = std::map<int, NodeSeen>;  // by node

[[nodiscard]] std::optional<Straggler> find_straggler(const NodesSeen& nodes);

/// From another node: only what fits into the world is kept.
[[nodiscard]] bool makes_sense(const NodeStatus& status, int node, const Assignment& assignment);

/// A worker's log, or each node's /metrics: what the first node asks for, and the answer.
struct LogRequest {
  static constexpr std::int32_t kMetrics = -1;
  std::int64_t number = 0;
  std::int32_t rank = 0;  // or kMetrics
  std::int32_t lines = 0;
  bool err = false;  // stderr
};
struct LogAnswer {
  std::int64_t number = 0;
  std::string problem;  // why there are no lines
  std::vector<std::string> lines;
};

struct JobFacts {
  const Job& job;
  const AgentStatus& status;  // of the first node
  std::string_view version;
  double began_s = 0, now_s = 0;  // since the epoch
  Instant now{};
};
/// GET /api/status. `with_times`: without, what changes with the clock alone is null, so that two texts
/// differ if something has happened.
[[nodiscard]] std::string job_status_json(const JobFacts& facts, const NodesSeen& nodes,
                                          bool with_times = true);

}  // namespace muster::launcher
