// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/liveness_probe.h"

#include <utility>

#include <fmt/format.h>

#include "launcher/hang/process_state.h"
#include "launcher/progress/collective_state.h"

namespace muster::launcher {

HeartbeatFiles::HeartbeatFiles(boost::asio::io_context& io, std::vector<std::string> paths,
                               std::function<Mark(const std::string&)> look)
    : paths_(std::move(paths)), look_(std::move(look)), deadline_(io), helper_(io) {}

void HeartbeatFiles::read(Done done) {
  done_ = std::move(done);
  ++reads_;
  deadline_.expires_after(kTimeout);
  deadline_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) finish(std::nullopt);
  }));
  // While one look does not return none is added to it.
  if (helper_.pending() > 0) return;
  helper_.run(
      [paths = paths_, look = look_] {
        std::vector<Mark> out;
        out.reserve(paths.size());
        for (const std::string& path : paths) out.push_back(look(path));
        return out;
      },
      [this, number = reads_](std::optional<std::vector<Mark>> marks) {
        if (number == reads_) finish(marks);
      });
}

void HeartbeatFiles::finish(const std::optional<std::vector<Mark>>& marks) {
  deadline_.cancel();
  if (const auto done = std::exchange(done_, {})) done(marks);
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

void LivenessProbe::look(Done done) {
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  if (!heartbeats_) return answer();
  heartbeats_->read([this](const std::optional<Marks>& marks) {
    if (!marks && marks_)
      environs_.log.warning(
          fmt::format("--heartbeat-file={}: the file system does not answer; until it does, no worker counts "
                      "as stalled",
                      environs_.job.hang.heartbeat));
    marks_ = marks;
    answer();
  });
}

void LivenessProbe::answer() {
  std::vector<Seen> seen;
  seen.reserve(static_cast<std::size_t>(environs_.job.local_world_size));
  for (int rank = 0; rank < environs_.job.local_world_size; ++rank) seen.push_back(look_at(rank));
  for (const Done& done : std::exchange(waiting_, {})) done(seen);
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
