// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/coordinator/membership.h"
#include "rendezvous/coordinator/rank_order.h"
#include "rendezvous/coordinator/round_changes.h"
#include "rendezvous/coordinator/waiting_reason.h"

namespace muster::membership {
namespace {

std::optional<Outcome> find_silent(Round& round, const Settings& settings, Instant now) {
  if (now < round.next_check) return std::nullopt;
  round.next_check = Instant::max();
  NodesLost out;
  for (const auto& [id, node] : round.nodes) {
    const Instant expires = node.connected ? node.last_heard + settings.heartbeat_timeout : node.back_by;
    if (expires > now) {
      round.next_check = std::min(round.next_check, expires);
      continue;
    }
    const Instant since = node.connected ? node.last_heard : node.disconnected_at;
    const double seconds = std::chrono::duration<double>(now - since).count();
    out.nodes.emplace_back(id, node.connected
                                   ? fmt::format("no heartbeat for {:.1f} s", seconds)
                                   : fmt::format("disconnected and not back within {:.1f} s", seconds));
  }
  if (out.nodes.empty()) return std::nullopt;
  // In join order, so that the first to blame does not depend on the hash table.
  std::sort(out.nodes.begin(), out.nodes.end(), [&](const auto& a, const auto& b) {
    return round.nodes.at(a.first).arrival < round.nodes.at(b.first).arrival;
  });
  for (const auto& [id, text] : out.nodes) lose_node(round, settings, round.nodes.at(id), text, now);
  return out;
}

/// Closes the round where the last generation would be one too many that led no further. It is to be entered
/// in the ledger first.
bool close_without_progress(Round& round, const Settings& settings, Cause ending) {
  if (!round.steps.exhausted(settings.max_without_progress)) return false;
  ending.exit_code = kNoProgressExitCode;
  ending.text += fmt::format("{}{}", ending.text.empty() ? "" : "; ",
                             round.steps.verdict(settings.max_without_progress));
  close_round(round, std::move(ending));
  return true;
}

bool ends_without_progress(Round& round, const Settings& settings, const Cause& cause) {
  // Often one rank alone tells of steps, and it may be another node's, which speaks with its Ready.
  if (!round.reached.known() && round.world.slots.size() > 1) return false;
  ProgressTracker steps = round.steps;
  steps.note(round.world.generation, round.reached, true);
  std::swap(steps, round.steps);
  if (close_without_progress(round, settings, cause)) return true;
  round.steps = std::move(steps);  // its other nodes have not told yet
  return false;
}

Outcome end_for_loss(Round& round, Cause cause) {
  cause.text +=
      "; not restarted: with static rendezvous, or by --restart-on or --no-restart-on, a lost node ends the "
      "job";
  close_round(round, std::move(cause));
  return Closed{};
}

Outcome end_generation(Round& round, const Settings& settings, Instant now) {
  const Cause cause = *std::exchange(round.pending, std::nullopt);
  const bool failure = cause.kind == Cause::Kind::kWorkerFailed || cause.kind == Cause::Kind::kNodeLost;
  const bool lost = cause.kind == Cause::Kind::kNodeLost;
  if (failure && (round.pending_final || round.restarts_used >= settings.max_restarts)) {
    close_round(round, cause);
    return Closed{};
  }
  if (lost && !settings.restart_after_loss) return end_for_loss(round, cause);
  // Of a lost node's generation the others tell when their workers are gone.
  if (!lost && failure && ends_without_progress(round, settings, cause)) return Closed{};
  if (failure) ++round.restarts_used;
  round.unnoted = failure;
  for (const Slot& slot : round.world.slots) {
    if (Node* node = find_node(round, slot.node)) node->finished = false;
  }
  round.num_finished = 0;
  round.num_stopping = 0;
  begin_gathering(round, settings, now);
  for (const auto& [id, node] : round.nodes)
    if (node.connected && !node.ready) ++round.num_stopping;
  return GenerationOver{round.world.generation, cause};
}

Outcome time_out(Round& round, const Settings& settings, Instant now) {
  Cause ending;
  ending.kind = Cause::Kind::kTimeout;
  ending.text = timeout_report(round, settings, now);
  close_round(round, std::move(ending));
  return Closed{};
}

using Candidates = std::vector<const Node*>;

Outcome form(Round& round, const Settings& settings, Candidates candidates) {
  if (const auto failed = std::exchange(round.unnoted, std::nullopt)) {
    round.steps.note(round.world.generation, round.reached, *failed);
    Cause ending;
    ending.kind = Cause::Kind::kWorkerFailed;
    if (*failed && close_without_progress(round, settings, std::move(ending))) return Closed{};
  }
  round.reached = {};
  World world = arrange(round.world, std::move(candidates), settings.max_nodes);
  world.generation = std::max(round.world.generation, round.generation_floor) + 1;
  const Node& first = *find_node(round, world.slots.front().node);
  world.master_addresses = first.request.addresses;
  world.master_port = first.request.master_port;
  round.world = std::move(world);
  round.phase = Phase::kRunning;
  round.num_stopping = 0;
  round.num_finished = 0;
  round.safe_point = false;
  round.grow_by.reset();
  round.pending_final = false;
  round.silent_since.reset();
  round.last_call.reset();
  round.join_deadline = Instant::max();
  round.stop_deadline.reset();
  round.join_failures.clear();
  for (auto& [id, node] : round.nodes) node.group_rank = -1;
  for (std::size_t i = 0; i < round.world.slots.size(); ++i) {
    Node& node = *find_node(round, round.world.slots[i].node);
    node.group_rank = static_cast<int>(i);
    node.ready = false;
    node.untold = true;
    --round.num_ready;
  }
  return Formed{};
}

int num_eligible(const Round& round, Instant now) {
  if (round.excluded.empty()) return round.num_ready;
  return static_cast<int>(std::count_if(round.nodes.begin(), round.nodes.end(), [&](const auto& entry) {
    return eligible(round, entry.second, now);
  }));
}

// A node that has missed a heartbeat may be dead, above all a spare that nothing but its heartbeats vouches
// for: with it the next generation would end as this one did. If the others do not fill the world, it is
// waited for until it is heard again or lost.
Outcome form_of_the_living(Round& round, const Settings& settings, Instant now) {
  const Instant since =
      now - settings.heartbeat_timeout / 2;  // an agent beats its heart three times in the time-out
  Candidates living;
  bool all = true;
  for (const auto& [id, node] : round.nodes) {
    if (!eligible(round, node, now)) continue;
    if (node.last_heard >= since)
      living.push_back(&node);
    else
      all = false;
  }
  const auto here = static_cast<int>(living.size());
  if (all || here >= settings.max_nodes) return form(round, settings, std::move(living));
  if (now < round.join_deadline) {
    round.silent_since = since;
    return Idle{};
  }
  if (here >= settings.min_nodes) return form(round, settings, std::move(living));
  return time_out(round, settings, now);
}

bool all_members_eligible(const Round& round, Instant now) {
  return std::all_of(round.world.slots.begin(), round.world.slots.end(), [&](const Slot& slot) {
    const auto found = round.nodes.find(slot.node);
    return found != round.nodes.end() && eligible(round, found->second, now);
  });
}

Outcome decide_gathering(Round& round, const Settings& settings, Instant now) {
  round.silent_since.reset();
  if (round.stop_deadline && now >= *round.stop_deadline) round.stop_deadline.reset();
  const int here = num_eligible(round, now);
  const bool late = now >= round.join_deadline;
  if (here < settings.min_nodes) {
    round.last_call.reset();
    return late ? time_out(round, settings, now) : Idle{};
  }
  if (late) return form_of_the_living(round, settings, now);
  // A survivor that is still stopping its workers keeps its ranks.
  if (round.num_stopping > 0 && round.stop_deadline) {
    round.last_call.reset();
    return Idle{};
  }
  if (here >= settings.max_nodes) return form_of_the_living(round, settings, now);
  // A restart that lost no node has nobody to wait for.
  if (!round.world.slots.empty() && here >= static_cast<int>(round.world.slots.size()) &&
      all_members_eligible(round, now))
    return form_of_the_living(round, settings, now);
  if (!round.last_call) round.last_call = now + settings.last_call_timeout;
  if (now >= *round.last_call) return form_of_the_living(round, settings, now);
  return Idle{};
}

// They interrupt the generation, at once or where it loses little by that.
void admit_newcomers(Round& round, const Settings& settings, Instant now) {
  const int newcomers = num_eligible(round, now);
  if (newcomers == 0) {
    round.grow_by.reset();
    return;
  }
  const bool late = round.grow_by && now >= *round.grow_by;
  if (settings.grow_at_safe_point && !round.safe_point && !late) {
    if (!round.grow_by && settings.safe_point_patience.count() > 0)
      round.grow_by = now + settings.safe_point_patience;
    return;
  }
  Cause cause;
  cause.kind = Cause::Kind::kNodesJoined;
  cause.text = fmt::format("{} node{} joined", newcomers, newcomers == 1 ? "" : "s");
  if (settings.grow_at_safe_point)
    cause.text += round.safe_point
                      ? " at the job's safe point"
                      : fmt::format(", and no safe point came within {:g} s (--join-at)",
                                    std::chrono::duration<double>(settings.safe_point_patience).count());
  round.pending = std::move(cause);
}

Outcome decide_running(Round& round, const Settings& settings, Instant now) {
  const int members = static_cast<int>(round.world.slots.size());
  if (!round.pending && round.num_finished == members) {
    Cause ending;
    ending.kind = Cause::Kind::kSucceeded;
    close_round(round, std::move(ending));
    return Closed{};
  }
  if (!round.pending && members < settings.max_nodes && round.num_ready > 0 && round.num_finished == 0)
    admit_newcomers(round, settings, now);
  else
    round.grow_by.reset();
  round.safe_point = false;  // who comes later waits for the next one
  return round.pending ? end_generation(round, settings, now) : Idle{};
}

}  // namespace

Outcome decide(Round& round, const Settings& settings, Instant now) {
  if (round.phase == Phase::kClosed) {
    // The first node waits for what the others report.
    if (auto lost = find_silent(round, settings, now)) return *std::move(lost);
    return Idle{};
  }
  if (round.pending && round.pending->kind == Cause::Kind::kStopped) {
    close_round(round, *std::exchange(round.pending, std::nullopt));
    return Closed{};
  }
  std::erase_if(round.excluded, [&](const auto& entry) { return entry.second <= now; });
  if (auto lost = find_silent(round, settings, now)) return *std::move(lost);
  if (round.phase == Phase::kGathering && round.pending)
    return end_for_loss(round, *std::exchange(round.pending, std::nullopt));
  return round.phase == Phase::kRunning ? decide_running(round, settings, now)
                                        : decide_gathering(round, settings, now);
}

Instant next_deadline(const Round& round) {
  if (round.phase == Phase::kClosed) return round.next_check;
  Instant out = std::min(round.next_check, round.join_deadline);
  // While silent nodes are waited for, the last call may be over already.
  if (round.last_call && !round.silent_since) out = std::min(out, *round.last_call);
  if (round.stop_deadline) out = std::min(out, *round.stop_deadline);
  if (round.grow_by) out = std::min(out, *round.grow_by);
  for (const auto& [machine, until] : round.excluded) out = std::min(out, until);
  return out;
}

}  // namespace muster::membership
