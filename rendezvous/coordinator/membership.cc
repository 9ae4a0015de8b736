// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/membership.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/coordinator/round_changes.h"

namespace muster::membership {
namespace {

// Beyond this a resuming node's word for the last generation is not taken.
constexpr std::int64_t kMaxGeneration = std::int64_t{1} << 40;

bool is_current(const Round& round, std::int64_t generation) {
  return round.phase == Phase::kRunning && !round.pending && generation == round.world.generation;
}

}  // namespace

bool eligible(const Round& round, const Node& node, Instant now) {
  if (!node.connected || !node.ready || !is_healthy(node.request)) return false;
  if (round.excluded.empty()) return true;
  const auto found = round.excluded.find(machine_of(node.request));
  return found == round.excluded.end() || found->second <= now;
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
    if (const auto found = round.orders.find(*request.order);
        found != round.orders.end() && found->second != request.id)
      return refuse("settings",
                    fmt::format("has --node-rank={}, which {} has already; every node needs its own",
                                *request.order, round.nodes.at(found->second).request.host));
  }
  forget_join_failure(round, request.host);
  if (resume && *resume < kMaxGeneration) round.generation_floor = std::max(round.generation_floor, *resume);

  bool resumed = false;
  bool untold = false;
  if (Node* known = find_node(round, request.id)) {
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
  Node* node = find_node(round, id);
  if (node == nullptr) return false;
  const Instant before = std::exchange(node->last_heard, now);
  return round.silent_since && before < *round.silent_since;
}

bool ready(Round& round, const NodeId& id, std::int64_t generation, std::uint16_t master_port, Instant now,
           const StepProgress& reached) {
  Node* node = find_node(round, id);
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
  const Node* node = find_node(round, id);
  // Whose workers have all ended well has none that could fail.
  if (node == nullptr || !is_current(round, generation) || node->group_rank < 0 || node->finished)
    return false;
  Cause cause = failure;
  cause.kind = Cause::Kind::kWorkerFailed;
  cause.host = node->request.host;
  cause.group_rank = node->group_rank;
  round.pending = std::move(cause);
  round.pending_final = !may_restart;
  round.reached = std::max(round.reached, reached);
  if (machine_at_fault && settings.cool_down.count() > 0)
    round.excluded[machine_of(node->request)] = now + settings.cool_down;
  return true;
}

bool finished(Round& round, const NodeId& id, std::int64_t generation, Instant now) {
  Node* node = find_node(round, id);
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
  const Node* node = find_node(round, id);
  if (node == nullptr) return;
  if (round.phase == Phase::kRunning && !round.pending && !node->finished && node->group_rank >= 0)
    round.pending = cause_of(Cause::Kind::kNodeLeft, *node, std::string(reason));
  if (round.phase == Phase::kGathering) note_unhealthy(round, *node);
  remove_node(round, id);
}

void disconnected(Round& round, const Settings& settings, const NodeId& id, std::string_view error,
                  Instant now, Break how) {
  Node* node = find_node(round, id);
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
  if (const Node* node = find_node(round, id)) lose_node(round, settings, *node, text, now);
}

bool store_lost(Round& round, const NodeId& id, std::int64_t generation) {
  const Node* node = find_node(round, id);
  if (node == nullptr || !is_current(round, generation) || node->group_rank < 0 || node->finished)
    return false;
  Cause cause;
  cause.kind = Cause::Kind::kStoreLost;
  cause.text = fmt::format(
      "the coordinator was started anew, and the workers' store of generation {} was lost with the former "
      "one",
      generation);
  round.pending = std::move(cause);
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
  return std::count_if(round.nodes.begin(), round.nodes.end(), counts) >= settings.min_nodes;
}

void stop(Round& round, std::string_view host, std::string_view reason, int exit_code) {
  if (round.phase == Phase::kClosed) return;
  Cause cause;
  cause.kind = Cause::Kind::kStopped;
  cause.host = host;
  cause.exit_code = exit_code;
  cause.text = reason;
  round.pending = std::move(cause);
}

}  // namespace muster::membership
