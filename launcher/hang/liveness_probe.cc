// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/liveness_probe.h"

#include "launcher/hang/process_state.h"
#include "launcher/progress/collective_state.h"
#include "launcher/progress/progress_sample.h"

namespace muster::launcher {

namespace {

bool waits_for_reader(const HangEnvirons& environs, int local_rank) {
  for (const Std stream : {Std::kOut, Std::kErr}) {
    if (!environs.router.is_blocked(stream)) continue;  // a system call
    // What it writes stays in its pipe, and is no sign.
    if (environs.router.backpressure(local_rank, stream)) return true;
    if (blocked_output(environs.group.pid(local_rank)) == stream &&
        !environs.router.has_file(local_rank, stream))
      return true;
  }
  return false;
}

WorkerSeen look_at(const HangEnvirons& environs, int local_rank) {
  WorkerSeen out;
  out.sign.running = environs.group.running(local_rank);
  if (!out.sign.running) return out;
  if (const auto sample = read_progress(environs.directory.progress_file(local_rank))) {
    out.progress = sample->text;
    out.sign.reports = true;
    out.sign.paused = sample->paused;
    out.sign.warmed_up = sample->warmed_up;
    out.sign.seen = sample->mark;
    out.source = "progress";
    if (sample->paused) out.paused = "announced a pause";
  }
  // Collectives are a sign of life of a program that reports nothing, only while others may wait for it.
  bool in_collective = false;
  if (!out.sign.reports && !out.sign.paused)
    if (const auto activity = read_collective_activity(environs.directory.progress_file(local_rank))) {
      out.sign.seen += activity->moves;
      in_collective = out.sign.reports = activity->waits;
      if (in_collective) out.source = "collectives";
    }
  const bool fixed = environs.job.hang.watch == HangRules::Watch::kFixed;
  if (fixed && (!out.sign.reports || in_collective)) {
    if (!out.sign.reports)
      out.source = environs.router.sees_stdout(local_rank)
                       ? "output"
                       : "stderr alone (with --view=all muster does not see stdout)";
    out.sign.seen += environs.router.output_so_far(local_rank);
  }
  if ((out.sign.reports || fixed) && !out.sign.paused && waits_for_reader(environs, local_rank)) {
    out.sign.paused = true;
    out.paused = "waits for the reader of its output";
  }
  return out;
}

}  // namespace

std::vector<WorkerSeen> look_at_workers(const HangEnvirons& environs) {
  std::vector<WorkerSeen> out(static_cast<std::size_t>(environs.job.local_world_size));
  for (std::size_t rank = 0; rank < out.size(); ++rank) out[rank] = look_at(environs, static_cast<int>(rank));
  return out;
}

}  // namespace muster::launcher
