// SPDX-License-Identifier: Apache-2.0
// What a round promises at any time, a world to its nodes and to those of the one before it, and a job that
// is over, for the simulator. A broken promise is an exception that names it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>

#include <fmt/format.h>

#include "rendezvous/coordinator/job_record.h"
#include "rendezvous/coordinator/membership.h"
#include "rendezvous/coordinator/waiting_reason.h"

#define HOLDS(condition)                                                                       \
  do {                                                                                         \
    if (!(condition))                                                                          \
      throw std::runtime_error(fmt::format("{}:{}: {}", __FILE_NAME__, __LINE__, #condition)); \
  } while (false)

namespace muster::test {

/// Survivors keep their order, and their ranks where the world has not shrunk. Returns how many nodes are
/// gone.
inline int check_survivors(const membership::World& before, const membership::World& world) {
  std::map<membership::NodeId, std::size_t> place;
  for (std::size_t i = 0; i < world.slots.size(); ++i) place[world.slots[i].node] = i;
  int gone = 0;
  bool same_sizes = true;  // of the places in front
  bool first = true;
  std::size_t last = 0;
  for (std::size_t i = 0; i < before.slots.size(); ++i) {
    const auto found = place.find(before.slots[i].node);
    if (found != place.end()) {
      HOLDS(first || found->second > last);
      first = false;
      last = found->second;
      if (world.slots.size() >= before.slots.size()) {
        HOLDS(found->second == i);
        if (same_sizes) HOLDS(world.slots[i].base_rank == before.slots[i].base_rank);
      }
    } else {
      ++gone;
    }
    if (i >= world.slots.size() || world.slots[i].ranks != before.slots[i].ranks) same_sizes = false;
  }
  return gone;
}

/// No rank twice and none left out; every member can take part: it is heard, fit and not cooling down.
inline void check_world(const membership::Round& round, const membership::Settings& settings, Instant now) {
  const membership::World& world = round.world;
  const int size = static_cast<int>(world.slots.size());
  HOLDS(size >= settings.min_nodes && size <= settings.max_nodes);
  int next = 0;
  std::map<std::string, int> next_role;
  std::set<membership::NodeId> members;
  for (const membership::Slot& slot : world.slots) {
    HOLDS(slot.base_rank == next);
    HOLDS(slot.role_base_rank == next_role[slot.role]);
    next += slot.ranks;
    next_role[slot.role] += slot.ranks;
    HOLDS(members.insert(slot.node).second);
    const membership::Node& node = round.nodes.at(slot.node);
    HOLDS(node.connected && !node.ready && !node.finished);
    HOLDS(membership::is_healthy(node.request));
    HOLDS(now - node.last_heard <= settings.heartbeat_timeout / 2);
    HOLDS(!round.excluded.contains(slot.machine) || round.excluded.at(slot.machine) <= now);
  }
  HOLDS(next == world.world_size);
  for (const membership::Slot& slot : world.slots) HOLDS(slot.role_world_size == next_role[slot.role]);
}

/// Why nodes wait is told, and each that is unhealthy is named while there is room for it.
inline void check_reasons(const membership::Round& round, const membership::Settings& settings, Instant now) {
  const membership::WaitingReason reason = explain(round, settings, now);
  HOLDS(reason == explain(round, settings, now));
  const std::string text = to_text(reason);
  HOLDS(!text.empty());
  for (const auto& [id, node] : round.nodes) {
    if (round.phase == membership::Phase::kRunning && node.group_rank < 0) {
      const std::string outside = explain_outside(round, settings, id);
      HOLDS(outside.starts_with("unhealthy") != membership::is_healthy(node.request));
    }
    if (round.phase == membership::Phase::kGathering && !membership::is_healthy(node.request) &&
        reason.num_more == 0)
      HOLDS(text.find(node.request.host + " is unhealthy: " + node.request.unhealthy) != std::string::npos);
  }
}

/// What is counted, so that decide() is quick, is what a count gives; and no deadline has been missed.
inline void check_round(const membership::Round& round, const membership::Settings& settings, Instant now) {
  using membership::Phase;
  HOLDS(round.restarts_used <= settings.max_restarts);
  HOLDS(!round.pending);
  HOLDS(!round.safe_point);
  HOLDS(!round.grow_by || (round.phase == Phase::kRunning && settings.safe_point_timeout.count() > 0));
  if (settings.max_without_progress > 0 && round.phase != Phase::kClosed)
    HOLDS(round.steps.no_progress_count < settings.max_without_progress);
  int num_ready = 0;
  int num_stopping = 0;
  int num_finished = 0;
  std::set<int> orders;
  for (const auto& [id, node] : round.nodes) {
    HOLDS(node.connected || !node.ready);
    HOLDS(membership::is_healthy(node.request) || node.group_rank < 0);
    if (node.finished) ++num_finished;
    if (!node.connected || !membership::is_healthy(node.request)) continue;
    ++(node.ready ? num_ready : num_stopping);
    if (node.request.order) HOLDS(orders.insert(*node.request.order).second);
  }
  HOLDS(orders.size() == round.orders.size());
  HOLDS(round.num_ready == num_ready);
  if (round.phase == Phase::kGathering) {
    HOLDS(round.num_stopping == num_stopping);
    HOLDS(round.nodes.empty() || now < round.join_deadline);
    HOLDS(round.join_deadline == Instant::max() ||
          round.join_deadline - round.gathering_since == settings.join_timeout);
  }
  if (round.phase == Phase::kRunning) {
    HOLDS(round.num_finished >= num_finished);
    HOLDS(round.num_finished < static_cast<int>(round.world.slots.size()));
  }
  HOLDS(next_deadline(round) > now);
  check_reasons(round, settings, now);
}

/// A coordinator that begins anew knows what the former one had told anybody.
inline void check_remembered(const membership::Round& before, const membership::Round& after) {
  HOLDS(after.phase == before.phase);
  HOLDS(after.world == before.world);
  HOLDS(after.restarts_used == before.restarts_used);
  HOLDS(after.steps == before.steps);
  for (const auto& [id, node] : before.nodes)
    if (node.finished) HOLDS(after.nodes.at(id).finished);
}

/// A job that is over stays so, with one reason, whatever comes; its places and spares are no surplus.
inline void check_over(membership::Round& round, const membership::Settings& settings,
                       const membership::Request& newcomer, Instant now) {
  using namespace membership;
  HOLDS(round.phase == Phase::kClosed);
  const Cause ending = round.ending;
  HOLDS((ending.exit_code == kNoProgressExitCode) == round.steps.exhausted(settings.max_without_progress));
  int outside = 0;
  for (const auto& [id, node] : round.nodes)
    if (node.connected && node.ready && node.group_rank < 0 && is_healthy(node.request)) ++outside;
  const auto extra = surplus(round, settings);
  const bool full = static_cast<int>(round.world.slots.size()) == settings.max_nodes;
  HOLDS(static_cast<int>(extra.size()) == (full ? std::max(0, outside - settings.spares) : 0));

  const std::int64_t generation = round.world.generation;
  HOLDS(join(round, settings, newcomer, settings, std::nullopt, now).kind == Admission::Kind::kRefused);
  HOLDS(join(round, settings, newcomer, settings, generation, now).kind == Admission::Kind::kRefused);
  std::vector<NodeId> ids;
  for (const auto& entry : round.nodes) ids.push_back(entry.first);
  for (const NodeId& id : ids) {
    HOLDS(!worker_failed(round, id, generation, {}, true, true, settings, now));
    HOLDS(!finished(round, id, generation, now));
    HOLDS(!store_lost(round, id, generation));
    HOLDS(!can_spare(round, settings, id, now));
    (void)ready(round, id, generation, 1, now);
  }
  HOLDS(!safe_point(round, generation));
  stop(round, "late", "too late", 1);
  const Instant much_later = now + std::chrono::hours(1);
  for (int i = 0; !std::holds_alternative<Idle>(decide(round, settings, much_later)); ++i) {
    HOLDS(i < 100);
    HOLDS(round.phase == Phase::kClosed);
  }
  HOLDS(round.nodes.empty() && next_deadline(round) == Instant::max());  // who is silent is forgotten
  const Round again = make_round(make_record(settings, round, much_later), much_later, Millis(1));
  HOLDS(again.phase == Phase::kClosed && again.ending == ending && round.ending == ending);
}

}  // namespace muster::test
