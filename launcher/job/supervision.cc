// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/supervision.h"

#include <muster/check.h>

namespace muster::launcher {

Supervision::Supervision(int workers, Millis grace)
    : grace_(grace), running_(workers), stopped_(static_cast<std::size_t>(workers), false) {}

Supervision::Actions Supervision::stop(int signal, AttemptEnd reason, Instant now, bool announce) {
  if (end_ == AttemptEnd::kSucceeded) end_ = reason;
  return {sequence_.ask(signal, grace_, now), announce};
}

Supervision::Actions Supervision::worker_ended(int local_rank, const ProcessEnd& end, bool unsignalled,
                                               Instant now) {
  MUSTER_CHECK(running_ > 0, "more workers ended than were started");
  --running_;
  if (stopping()) {
    const bool alone = sequence_.passive() && !end.ok() && !end.preempted();
    stopped_[static_cast<std::size_t>(local_rank)] = !unsignalled;
    // The others were left to save their state, which this one has not done: nothing is to be waited for.
    return alone ? stop(SIGTERM, AttemptEnd::kWorkerFailed, now) : Actions{};
  }
  if (end.ok()) return {};
  first_failure_ = local_rank;
  // The others are about to end as well, and may still be saving: no signal to them.
  return end.preempted() ? stop(0, AttemptEnd::kPreempted, now, true)
                         : stop(SIGTERM, AttemptEnd::kWorkerFailed, now, true);
}

Supervision::Actions Supervision::start_failed(int started, Instant now) {
  running_ = started;
  return stop(SIGTERM, AttemptEnd::kNotStarted, now, true);
}

Supervision::Actions Supervision::signal_received(int signal, Instant now) {
  const bool first = !stopping();
  const bool told_already = told_to_end() && !skips_ahead();
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (told_already) return {};
  return stop(signal, AttemptEnd::kSignalled, now, first);
}

Supervision::Actions Supervision::hung(Instant now) {
  return stopping() || running_ == 0 ? Actions{} : stop(SIGTERM, AttemptEnd::kHung, now, true);
}

Supervision::Actions Supervision::stopped_from_outside(AttemptEnd reason, Instant now, bool signalled) {
  // Already on the way down: another node's news must not shorten the grace of this one.
  // But those who were left to end by themselves are told now.
  if (stopping() && !(sequence_.passive() && reason != AttemptEnd::kPreempted)) return {};
  signalled_elsewhere_ = signalled;
  return stop(reason == AttemptEnd::kPreempted ? 0 : SIGTERM, reason, now);
}

Supervision::Actions Supervision::tick(Instant now) {
  return {sequence_.tick(now), false};
}

}  // namespace muster::launcher
