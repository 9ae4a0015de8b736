// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/status_page.h"

#include <utility>

#include "launcher/progress/progress_sample.h"

namespace muster::launcher {
namespace {

constexpr Millis kFresh{100};

}  // namespace

StatusPage::StatusPage(boost::asio::io_context& io, net::Listener listener, const Job& job,
                       const Telemetry& telemetry, std::string_view version)
    : job_(job),
      telemetry_(telemetry),
      version_(version),
      seen_(static_cast<std::size_t>(job.local_world_size)),
      server_(io, std::move(listener), [this](std::string_view path) { return answer(path); }) {}

std::optional<net::StatusReply> StatusPage::answer(std::string_view path) {
  const AgentStatus& status = telemetry_.status();
  if (path == "/healthz") return net::StatusReply{.body = health_text(job_, status, SteadyClock::now())};
  if (path != "/metrics") return std::nullopt;
  std::vector<WorkerReading> readings;
  readings.reserve(status.workers.size());
  for (std::size_t i = 0; i < status.workers.size(); ++i)
    readings.push_back(read(status.workers[i], seen_[i]));
  MetricsText out;
  std::optional<std::uint64_t> dropped;
  if (telemetry_.events() != nullptr) dropped = telemetry_.events()->dropped();
  put_metrics(out, job_, status, readings, version_, dropped);
  put_process_metrics(out);
  return net::StatusReply{.type = MetricsText::kContentType, .body = out.take(), .fresh_for = kFresh};
}

WorkerReading StatusPage::read(const WorkerStatus& worker, Seen& seen) const {
  WorkerReading out;
  if (worker.state == WorkerState::kRunning) out.usage = read_process_usage(worker.pid);
  const auto progress = read_progress(worker.progress);
  if (!progress) return out;
  out.position = position_in(progress->text);
  const Instant now = SteadyClock::now();
  if (seen.pid != worker.pid || seen.mark != progress->mark) seen = {worker.pid, progress->mark, now};
  out.progress_age_s = std::chrono::duration<double>(now - seen.at).count();
  return out;
}

}  // namespace muster::launcher
