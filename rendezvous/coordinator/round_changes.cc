// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/round_changes.h"

#include <algorithm>
#include <utility>

namespace muster::membership {

Node* find_node(Round& round, const NodeId& id) {
  const auto found = round.nodes.find(id);
  return found == round.nodes.end() ? nullptr : &found->second;
}

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

void remove_node(Round& round, const NodeId& id) {
  const auto found = round.nodes.find(id);
  count_node(round, found->second, -1);
  round.nodes.erase(found);
  if (round.nodes.empty() && round.phase == Phase::kGathering) {
    // Nobody waits: the next to join begins anew.
    round.join_deadline = Instant::max();
    round.stop_deadline.reset();
    round.last_call.reset();
  }
}

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
  Cause out;
  out.kind = kind;
  out.host = node.request.host;
  out.group_rank = node.group_rank;
  out.text = std::move(text);
  return out;
}

namespace {

/// On its machine, which therefore is not at fault. Asked for the first node that a generation loses only:
/// this looks at all nodes, and a machine that dies takes all its agents along.
bool has_another_agent(const Round& round, const Node& lost) {
  return std::any_of(round.nodes.begin(), round.nodes.end(), [&](const auto& entry) {
    const Node& other = entry.second;
    return other.connected && other.request.id != lost.request.id &&
           machine_of(other.request) == machine_of(lost.request);
  });
}

}  // namespace

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
  round.phase = Phase::kGathering;
  round.gathering_since = now;
  round.join_deadline = now + settings.join_timeout;
  round.stop_deadline = now + std::min(settings.stop_timeout, settings.join_timeout);
  round.last_call.reset();
  round.silent_since.reset();
  round.grow_by.reset();
}

void close_round(Round& round, Cause ending) {
  round.phase = Phase::kClosed;
  round.ending = std::move(ending);
  round.join_deadline = Instant::max();
  round.stop_deadline.reset();
  round.last_call.reset();
  round.silent_since.reset();
  round.grow_by.reset();
  round.num_stopping = 0;
  round.pending.reset();
}

void note_join_failure(Round& round, JoinFailure failure) {
  const bool unproven = failure.unproven;
  std::erase_if(round.join_failures, [&](const JoinFailure& each) {
    return each.name == failure.name && each.unproven == unproven;
  });
  const auto alike = [&](const JoinFailure& each) { return each.unproven == unproven; };
  const auto count = std::count_if(round.join_failures.begin(), round.join_failures.end(), alike);
  if (static_cast<std::size_t>(count) >= (unproven ? kMaxUnprovenJoinFailures : kMaxJoinFailures))
    round.join_failures.erase(std::find_if(round.join_failures.begin(), round.join_failures.end(), alike));
  round.join_failures.push_back(std::move(failure));
}

}  // namespace muster::membership
