// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/liveness_probe.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "launcher/hang/process_state.h"
#include "launcher/progress/collective_state.h"

namespace muster::launcher {

HeartbeatFiles::HeartbeatFiles(boost::asio::io_context& io, std::vector<std::string> paths,
                               std::function<Mark(const std::string&)> look)
    : paths_(std::move(paths)), look_(std::move(look)), helper_(io) {}

std::optional<std::vector<HeartbeatFiles::Mark>> HeartbeatFiles::read() {
  auto answer = std::move(late_);
  Millis timeout{0};
  if (!answer.valid()) {
    const auto marks = std::make_shared<std::promise<std::vector<Mark>>>();
    helper_.run(
        [paths = paths_, look = look_, marks] {
          std::vector<Mark> out;
          for (const std::string& path : paths) out.push_back(look(path));
          marks->set_value(std::move(out));
        },
        [] {});
    answer = marks->get_future();
    timeout = kTimeout;
  }
  if (answer.wait_for(timeout) == std::future_status::ready) return answer.get();
  late_ = std::move(answer);
  return std::nullopt;
}

LivenessProbe::LivenessProbe(boost::asio::io_context& io, const HangEnvirons& environs)
    : environs_(environs) {
  const Job& job = environs.job;
  if (job.hang.heartbeat.empty()) return;
  std::vector<std::string> paths;
  paths.reserve(static_cast<std::size_t>(job.local_world_size));
  for (int rank = 0; rank < job.local_world_size; ++rank)
    paths.push_back(job.hang.heartbeat_file(environs.assignment.base_rank + rank, rank));
  heartbeats_.emplace(io, std::move(paths));
}

std::vector<LivenessProbe::Seen> LivenessProbe::look() {
  if (heartbeats_) {
    auto marks = heartbeats_->read();
    if (!marks && marks_)
      environs_.log.warning(
          fmt::format("--heartbeat-file={}: the file system does not answer; until it does, no worker counts "
                      "as stalled",
                      environs_.job.hang.heartbeat));
    marks_ = std::move(marks);
  }
  std::vector<Seen> out;
  for (int rank = 0; rank < environs_.job.local_world_size; ++rank) out.push_back(look_at(rank));
  return out;
}

LivenessProbe::Seen LivenessProbe::look_at(int local_rank) const {
  Seen out;
  out.source = "none";
  out.sign.running = environs_.group.running(local_rank);
  if (!out.sign.running) return out;
  if (const auto sample = read_progress(environs_.directory.progress_file(local_rank))) {
    out.progress = sample->text;
    out.sign.reports = true;
    out.sign.paused = sample->paused;
    out.sign.warmed_up = sample->warmed_up;
    out.sign.seen = sample->mark;
    out.source = "progress";
    if (sample->paused) out.paused = "announced a pause";
  }
  if (heartbeats_ && !marks_) {
    out.sign.paused = true;
    out.paused = "has a heartbeat file whose file system does not answer";
  } else if (heartbeats_) {
    if (const auto mark = (*marks_)[static_cast<std::size_t>(local_rank)]) {
      if (!out.sign.reports) out.source = "heartbeat";
      out.sign.reports = true;
      out.sign.seen += *mark;
    }
  }
  // Collectives are a sign of life of a program that reports nothing, only while others may wait for it.
  bool in_collective = false;
  if (!out.sign.reports && !out.sign.paused)
    if (const auto activity = read_collective_activity(environs_.directory.progress_file(local_rank))) {
      out.sign.seen += activity->moves;
      in_collective = out.sign.reports = activity->waits;
      if (in_collective) out.source = "collectives";
    }
  const bool fixed = environs_.job.hang.watch == HangRules::Watch::kFixed;
  if (fixed && (!out.sign.reports || in_collective)) {
    if (!out.sign.reports)
      out.source = environs_.router.sees_stdout(local_rank)
                       ? "output"
                       : "stderr alone (with --view=all muster does not see stdout)";
    out.sign.seen += environs_.router.output_so_far(local_rank);
  }
  if ((out.sign.reports || fixed) && !out.sign.paused && waits_for_reader(local_rank)) {
    out.sign.paused = true;
    out.paused = "waits for the reader of its output";
  }
  return out;
}

bool LivenessProbe::waits_for_reader(int local_rank) const {
  for (const Std stream : {Std::kOut, Std::kErr}) {
    if (!environs_.router.is_blocked(stream)) continue;  // a system call
    // What it writes stays in its pipe, and is no sign.
    if (environs_.router.backpressure(local_rank, stream)) return true;
    if (blocked_output(environs_.group.pid(local_rank)) == stream &&
        !environs_.router.has_file(local_rank, stream))
      return true;
  }
  return false;
}

}  // namespace muster::launcher
