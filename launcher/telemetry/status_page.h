// SPDX-License-Identifier: Apache-2.0
// StatusPage: /healthz and /metrics of an agent (--metrics-addr), from its start to its end. Owned by main;
// on the agent's loop: an answer says that the loop runs. Nothing is read before somebody asks; an answer
// costs two small reads for each worker. Failure: of a request alone.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/hardware/gpu_reading.h"
#include "launcher/job/job.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/metrics_text.h"
#include "rendezvous/status/status_server.h"

namespace muster::launcher {

// What an agent answers to GET /healthz and GET /metrics, as text. Pure: status, readings and time in. Called
// by StatusPage. The names are in launcher/reference.md.

/// Of one running worker, as it is now; what is not known is left out.
struct WorkerReading {
  std::optional<double> resident_bytes, cpu_seconds, threads;
  std::optional<double> epoch, step;     // the last it said of its progress
  std::optional<double> progress_age_s;  // since then
};

/// One JSON object with a newline.
[[nodiscard]] std::string health_text(const Job& job, const AgentStatus& status, Instant now);

/// `readings`: by local rank. `dropped_events`: nothing: there are no events.
void put_metrics(MetricsText& out, const Job& job, const AgentStatus& status,
                 std::span<const WorkerReading> readings, std::string_view version,
                 std::optional<std::uint64_t> dropped_events);

class StatusPage {
 public:
  StatusPage(boost::asio::io_context& io, net::Listener listener, const Job& job, const Telemetry& telemetry,
             std::string_view version);

  /// The last readings of this node's GPUs, by index; asked at most once a second, and only while somebody
  /// looks. It returns at once: a driver may not answer.
  using GpuReadings = std::function<std::vector<GpuReading>()>;
  void set_gpu_readings(GpuReadings read) { gpu_readings_ = std::move(read); }

 private:
  /// When a worker's progress was seen to change. The clock of a file in memory that a worker
  /// has mapped does not tell.
  struct Seen {
    int pid = 0;
    std::uint64_t mark = 0;
    Instant at{};
  };

  [[nodiscard]] std::optional<net::StatusReply> answer(std::string_view path);
  [[nodiscard]] WorkerReading read(const WorkerStatus& worker, Seen& seen) const;

  const Job& job_;
  const Telemetry& telemetry_;
  std::string_view version_;
  GpuReadings gpu_readings_;  // nothing: no GPU is read
  std::vector<Seen> seen_;    // by local rank
  net::StatusServer server_;
};

}  // namespace muster::launcher
