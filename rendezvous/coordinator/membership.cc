// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/membership.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "rendezvous/base/key_map.h"
#include "rendezvous/base/text.h"
#include "rendezvous/coordinator/waiting_reason.h"

namespace muster::membership {
namespace {

// The steps that events and decisions share. They keep the counters of the round true.

// Adds a node to the counters (+1), or takes it out of them before it changes (-1).
void count_node(Round& round, const Node& node, int sign) {
  if (!node.connected || !is_healthy(node.request)) return;
  if (const auto order = node.request.order) {
    if (sign > 0)
      round.orders.emplace(*order, node.request.id);
    else if (const auto found = round.orders.find(*order);
             found != round.orders.end() && found->second == node.request.id)
      round.orders.erase(found);
  }
  if (node.ready)
    round.num_ready += sign;
  else if (round.phase == Phase::kGathering)
    round.num_stopping += sign;
}

void forget_deadlines(Round& round) {
  round.join_deadline = Instant::max();
  round.stop_deadline.reset();
  round.last_call.reset();
  round.silent_since.reset();
  round.grow_by.reset();
}

void remove_node(Round& round, const NodeId& id) {
  const auto found = round.nodes.find(id);
  count_node(round, found->second, -1);
  round.nodes.erase(found);
  // Nobody waits: the next to join begins anew.
  if (round.nodes.empty() && round.phase == Phase::kGathering) forget_deadlines(round);
}

// Why an unhealthy node takes no part is kept for those who wait, though it goes.
void note_unhealthy(Round& round, const Node& node) {
  const Request& request = node.request;
  if (!is_healthy(request))
    note_join_failure(round,
                      {request.host, "preflight", "is unhealthy: " + request.unhealthy, request.order});
}

void forget_join_failure(Round& round, std::string_view name) {
  std::erase_if(round.join_failures, [&](const JoinFailure& failure) { return failure.name == name; });
}

Cause cause_of(Cause::Kind kind, const Node& node, std::string text) {
  return {.kind = kind, .host = node.request.host, .group_rank = node.group_rank, .text = std::move(text)};
}

/// On its machine, which therefore is not at fault. Asked for the first node that a generation loses only:
/// this looks at all nodes, and a machine that dies takes all its agents along.
bool has_another_agent(const Round& round, const Node& lost) {
  return std::ranges::any_of(round.nodes, [&](const auto& entry) {
    const Node& other = entry.second;
    return other.connected && other.request.id != lost.request.id &&
           machine_of(other.request) == machine_of(lost.request);
  });
}

// The node is gone for good, without a good-bye.
void lose_node(Round& round, const Settings& settings, const Node& node, const std::string& text,
               Instant now) {
  if (round.phase == Phase::kRunning && node.group_rank >= 0 && !node.finished && !node.ready) {
    const bool first = !round.pending;
    if (first) round.pending = cause_of(Cause::Kind::kNodeLost, node, text);
    if (settings.cool_down.count() > 0 && !(first && has_another_agent(round, node)))
      round.excluded[machine_of(node.request)] = now + settings.cool_down;
  }
  // Between two generations nothing but its return would help, which is not waited for.
  if (round.phase == Phase::kGathering && node.group_rank >= 0 && !settings.restart_after_loss &&
      !round.pending)
    round.pending = cause_of(Cause::Kind::kNodeLost, node, text);
  if (!is_healthy(node.request))
    note_unhealthy(round, node);
  else if (round.phase != Phase::kClosed)
    note_join_failure(
        round, {node.request.host, "connection", "connected, then dropped: " + text, node.request.order});
  remove_node(round, NodeId(node.request.id));
}

void begin_gathering(Round& round, const Settings& settings, Instant now) {
  forget_deadlines(round);
  round.phase = Phase::kGathering;
  round.gathering_since = now;
  round.join_deadline = now + settings.join_timeout;
  round.stop_deadline = now + std::min(settings.stop_timeout, settings.join_timeout);
}

void close_round(Round& round, Cause ending) {
  round.phase = Phase::kClosed;
  round.ending = std::move(ending);
  forget_deadlines(round);
  round.num_stopping = 0;
  round.pending.reset();
}

// Events.

// A higher generation that a resuming node names is not believed.
constexpr std::int64_t kMaxGeneration = std::int64_t{1} << 40;

bool is_current(const Round& round, std::int64_t generation) {
  return round.phase == Phase::kRunning && !round.pending && generation == round.world.generation;
}

}  // namespace

bool eligible(const Round& round, const Node& node, Instant now) {
  if (!node.connected || !node.ready || !is_healthy(node.request)) return false;
  if (round.excluded.empty()) return true;
  const Instant* until = find_in(round.excluded, machine_of(node.request));
  return until == nullptr || *until <= now;
}

const std::string& machine_of(const Request& request) {
  return request.machine.empty() ? request.host : request.machine;
}

Admission join(Round& round, const Settings& settings, const Request& request, const Settings& wanted,
               std::optional<std::int64_t> resume, Instant now) {
  const auto refuse = [&](std::string phase, std::string text) {
    note_join_failure(round, {request.host, std::move(phase), text, request.order});
    return Admission{Admission::Kind::kRefused, std::move(text)};
  };
  if (round.phase == Phase::kClosed)
    return {Admission::Kind::kRefused, fmt::format("the job is over: {}", to_string(round.ending.kind))};
  if (request.wanted_ranks < 1 || request.wanted_ranks > kMaxRanksPerNode)
    return refuse("settings",
                  fmt::format("wants {} ranks, a node has 1 to {}", request.wanted_ranks, kMaxRanksPerNode));
  if (std::string text = difference(wanted, settings); !text.empty())
    return refuse("settings", std::move(text));

  if (request.order && is_healthy(request)) {
    if (const NodeId* holder = find_in(round.orders, *request.order);
        holder != nullptr && *holder != request.id)
      return refuse("settings",
                    fmt::format("has --node-rank={}, which {} has already; every node needs its own",
                                *request.order, round.nodes.at(*holder).request.host));
  }
  forget_join_failure(round, request.host);
  if (resume && *resume < kMaxGeneration) round.generation_floor = std::max(round.generation_floor, *resume);

  bool resumed = false;
  bool untold = false;
  if (Node* known = find_in(round.nodes, request.id)) {
    const bool member = round.phase == Phase::kRunning && known->group_rank >= 0 && !known->ready;
    // One that waits for a world and is in one did not hear of it: the word was lost with its connection, or
    // with the coordinator that formed it.
    untold = member && known->untold && (!resume || *resume < round.world.generation);
    resumed = untold || (member && resume == round.world.generation);
    known->untold = untold;
    count_node(round, *known, -1);
    known->connected = true;
    known->last_heard = now;
    known->request = request;
    known->ready = !resume && !untold;
    // A member whose workers are not those of the running world.
    if (member && !resumed && !round.pending && !known->finished)
      round.pending = cause_of(Cause::Kind::kNodeLost, *known, "its agent began anew");
    count_node(round, *known, +1);
  } else {
    if (round.nodes.empty() && round.phase == Phase::kGathering) begin_gathering(round, settings, now);
    Node node;
    node.request = request;
    node.arrival = round.next_arrival++;
    node.ready = !resume;
    node.last_heard = now;
    count_node(round, node, +1);
    round.nodes.emplace(request.id, std::move(node));
  }
  round.next_check = std::min(round.next_check, now + settings.heartbeat_timeout);
  if (untold) return {Admission::Kind::kUntold, {}};
  if (resumed) return {Admission::Kind::kResumed, {}};
  if (!resume) return {};
  return {Admission::Kind::kStale, fmt::format("generation {} is over", *resume)};
}

bool heartbeat(Round& round, const NodeId& id, Instant now) {
  Node* node = find_in(round.nodes, id);
  if (node == nullptr) return false;
  const Instant before = std::exchange(node->last_heard, now);
  return round.silent_since && before < *round.silent_since;
}

bool ready(Round& round, const NodeId& id, std::int64_t generation, std::uint16_t master_port, Instant now,
           const StepProgress& reached) {
  Node* node = find_in(round.nodes, id);
  if (node == nullptr) return false;
  // Without a place in this world, it speaks of one that a forgetful coordinator gave the same number.
  if (is_current(round, generation) && node->group_rank >= 0) return false;
  if (round.phase == Phase::kGathering && generation == round.world.generation)
    round.reached = std::max(round.reached, reached);
  else
    round.steps.amend(generation, reached);  // its connection was broken while the next world was formed
  node->last_heard = now;
  if (node->ready) return true;
  // A member of the running world that says so for a former generation lags behind.
  if (round.phase == Phase::kRunning && node->group_rank >= 0) return false;
  count_node(round, *node, -1);
  node->ready = true;
  node->request.master_port = master_port;
  count_node(round, *node, +1);
  return true;
}

bool worker_failed(Round& round, const NodeId& id, std::int64_t generation, const Cause& failure,
                   bool may_restart, bool machine_at_fault, const Settings& settings, Instant now,
                   const StepProgress& reached) {
  const Node* node = find_in(round.nodes, id);
  // Whose workers have all ended well has none that could fail.
  if (node == nullptr || !is_current(round, generation) || node->group_rank < 0 || node->finished)
    return false;
  round.pending = cause_of(Cause::Kind::kWorkerFailed, *node, failure.text);
  round.pending->rank = failure.rank;
  round.pending->exit_code = failure.exit_code;
  round.pending_final = !may_restart;
  round.reached = std::max(round.reached, reached);
  if (machine_at_fault && settings.cool_down.count() > 0)
    round.excluded[machine_of(node->request)] = now + settings.cool_down;
  return true;
}

bool finished(Round& round, const NodeId& id, std::int64_t generation, Instant now) {
  Node* node = find_in(round.nodes, id);
  if (node == nullptr || !is_current(round, generation) || node->group_rank < 0) return false;
  node->last_heard = now;
  if (!node->finished) ++round.num_finished;
  node->finished = true;
  node->untold = false;
  return true;
}

bool safe_point(Round& round, std::int64_t generation) {
  if (!is_current(round, generation)) return false;
  round.safe_point = round.num_ready > 0;
  return true;
}

void left(Round& round, const NodeId& id, std::string_view reason) {
  const Node* node = find_in(round.nodes, id);
  if (node == nullptr) return;
  if (round.phase == Phase::kRunning && !round.pending && !node->finished && node->group_rank >= 0)
    round.pending = cause_of(Cause::Kind::kNodeLeft, *node, std::string(reason));
  if (round.phase == Phase::kGathering) note_unhealthy(round, *node);
  remove_node(round, id);
}

void disconnected(Round& round, const Settings& settings, const NodeId& id, std::string_view error,
                  Instant now, Break how) {
  Node* node = find_in(round.nodes, id);
  if (node == nullptr || !node->connected) return;
  const bool member = round.phase == Phase::kRunning && !node->ready;
  Millis grace = how == Break::kEnd ? Millis(0) : settings.reconnect_grace;
  if (how == Break::kReset) grace = std::min(grace, kResetGrace);
  if (!member || grace.count() == 0) {
    lose_node(round, settings, *node, std::string(error), now);
    return;
  }
  count_node(round, *node, -1);
  node->connected = false;
  node->disconnected_at = now;
  node->back_by = now + grace;
  round.next_check = std::min(round.next_check, now + grace);
}

void lost(Round& round, const Settings& settings, const NodeId& id, const std::string& text, Instant now) {
  if (const Node* node = find_in(round.nodes, id)) lose_node(round, settings, *node, text, now);
}

bool store_lost(Round& round, const NodeId& id, std::int64_t generation) {
  const Node* node = find_in(round.nodes, id);
  if (node == nullptr || !is_current(round, generation) || node->group_rank < 0 || node->finished)
    return false;
  round.pending = {.kind = Cause::Kind::kStoreLost,
                   .text = fmt::format("the coordinator was started anew, and the workers' store of "
                                       "generation {} was lost with the former one",
                                       generation)};
  return true;
}

bool can_spare(const Round& round, const Settings& settings, const NodeId& id, Instant now) {
  if (round.phase == Phase::kClosed) return false;
  const auto counts = [&](const auto& entry) {
    const Node& node = entry.second;
    if (entry.first == id || !node.connected || !is_healthy(node.request)) return false;
    // One that has missed a heartbeat may be dead, see decide().
    if (node.last_heard < now - settings.heartbeat_timeout / 2) return false;
    return node.ready ? eligible(round, node, now) : node.group_rank >= 0;
  };
  return std::ranges::count_if(round.nodes, counts) >= settings.min_nodes;
}

void stop(Round& round, std::string_view host, std::string_view reason, int exit_code) {
  if (round.phase == Phase::kClosed) return;
  round.pending = {.kind = Cause::Kind::kStopped,
                   .host = std::string(host),
                   .exit_code = exit_code,
                   .text = std::string(reason)};
}

void note_join_failure(Round& round, JoinFailure failure) {
  const bool unproven = failure.unproven;
  std::erase_if(round.join_failures, [&](const JoinFailure& each) {
    return each.name == failure.name && each.unproven == unproven;
  });
  const auto alike = [&](const JoinFailure& each) { return each.unproven == unproven; };
  const auto count = std::ranges::count_if(round.join_failures, alike);
  if (static_cast<std::size_t>(count) >= (unproven ? kMaxUnprovenJoinFailures : kMaxJoinFailures))
    round.join_failures.erase(std::ranges::find_if(round.join_failures, alike));
  round.join_failures.push_back(std::move(failure));
}

// Decisions.

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
    const double seconds = seconds_between(since, now);
    out.nodes.emplace_back(id, node.connected
                                   ? fmt::format("no heartbeat for {:.1f} s", seconds)
                                   : fmt::format("disconnected and not back within {:.1f} s", seconds));
  }
  if (out.nodes.empty()) return std::nullopt;
  // In join order, so that the first to blame does not depend on the hash table.
  std::ranges::sort(out.nodes, {}, [&](const auto& each) { return round.nodes.at(each.first).arrival; });
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
    if (Node* node = find_in(round.nodes, slot.node)) node->finished = false;
  }
  round.num_finished = 0;
  round.num_stopping = 0;
  begin_gathering(round, settings, now);
  for (const auto& [id, node] : round.nodes)
    if (node.connected && !node.ready) ++round.num_stopping;
  return GenerationOver{round.world.generation, cause};
}

Outcome time_out(Round& round, const Settings& settings, Instant now) {
  close_round(round, {.kind = Cause::Kind::kTimeout, .text = timeout_report(round, settings, now)});
  return Closed{};
}

using Candidates = std::vector<const Node*>;

Outcome form(Round& round, const Settings& settings, Candidates candidates) {
  if (const auto failed = std::exchange(round.unnoted, std::nullopt)) {
    round.steps.note(round.world.generation, round.reached, *failed);
    if (*failed && close_without_progress(round, settings, {.kind = Cause::Kind::kWorkerFailed}))
      return Closed{};
  }
  round.reached = {};
  World world = arrange(round.world, std::move(candidates), settings.max_nodes);
  world.generation = std::max(round.world.generation, round.generation_floor) + 1;
  const Node& first = *find_in(round.nodes, world.slots.front().node);
  world.master_addresses = first.request.addresses;
  world.master_port = first.request.master_port;
  round.world = std::move(world);
  round.phase = Phase::kRunning;
  round.num_stopping = 0;
  round.num_finished = 0;
  round.safe_point = false;
  round.pending_final = false;
  forget_deadlines(round);
  round.join_failures.clear();
  for (auto& [id, node] : round.nodes) node.group_rank = -1;
  for (std::size_t i = 0; i < round.world.slots.size(); ++i) {
    Node& node = *find_in(round.nodes, round.world.slots[i].node);
    node.group_rank = static_cast<int>(i);
    node.ready = false;
    node.untold = true;
    --round.num_ready;
  }
  return Formed{};
}

int num_eligible(const Round& round, Instant now) {
  if (round.excluded.empty()) return round.num_ready;
  return static_cast<int>(std::ranges::count_if(
      round.nodes, [&](const auto& entry) { return eligible(round, entry.second, now); }));
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
  return std::ranges::all_of(round.world.slots, [&](const Slot& slot) {
    const Node* node = find_in(round.nodes, slot.node);
    return node != nullptr && eligible(round, *node, now);
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
    if (!round.grow_by && settings.safe_point_timeout.count() > 0)
      round.grow_by = now + settings.safe_point_timeout;
    return;
  }
  std::string text = counted(newcomers, "node") + " joined";
  if (settings.grow_at_safe_point)
    text += round.safe_point
                ? " at the job's safe point"
                : fmt::format(", and no safe point came within {:g} s (--join-at)",
                              std::chrono::duration<double>(settings.safe_point_timeout).count());
  round.pending = {.kind = Cause::Kind::kNodesJoined, .text = std::move(text)};
}

Outcome decide_running(Round& round, const Settings& settings, Instant now) {
  const int members = static_cast<int>(round.world.slots.size());
  if (!round.pending && round.num_finished == members) {
    close_round(round, {.kind = Cause::Kind::kSucceeded});
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
