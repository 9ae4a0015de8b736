// SPDX-License-Identifier: Apache-2.0
// RoundSimulation: one job's round and a handful of agents, each of which may know an outdated generation, at
// the mercy of random events: agents that come, fail, leave and are cut off, are unhealthy, lose their store
// or their lease; words that are lost on the way; coordinators that begin anew from their record. The
// promises of round_promises.h are checked after each; a broken one is an exception. For the simulator; one
// thread.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/coordinator/job_record.h"
#include "rendezvous/coordinator/membership.h"
#include "tests/unit/rendezvous/round_promises.h"

namespace muster::membership {

/// How often it happened, in all simulations together.
struct SimulationCounts {
  int worlds = 0;
  int swaps = 0;  ///< nodes replaced or dropped
  int told_again = 0;
  int restarts = 0;  ///< of coordinators
  int growths = 0;
  int unhealthy = 0;
  int spared = 0;  ///< nodes that left a world which could do without
  int stores_lost = 0;

  SimulationCounts& operator+=(const SimulationCounts& other) {
    worlds += other.worlds;
    swaps += other.swaps;
    told_again += other.told_again;
    restarts += other.restarts;
    growths += other.growths;
    unhealthy += other.unhealthy;
    spared += other.spared;
    stores_lost += other.stores_lost;
    return *this;
  }
};

class RoundSimulation {
 public:
  explicit RoundSimulation(std::mt19937_64& random) : random_(random) {
    settings_.max_nodes = 1 + below(5);
    settings_.min_nodes = 1 + below(settings_.max_nodes);
    settings_.spares = below(3);
    settings_.max_restarts = below(6);
    settings_.join_timeout = Millis(20'000 + below(100'000));
    settings_.last_call_timeout = Millis(below(30'000));
    settings_.stop_timeout = Millis(below(30'000));
    settings_.heartbeat_timeout = Millis(5'000 + below(20'000));
    settings_.cool_down = Millis(below(4) == 0 ? 0 : below(40'000));
    settings_.reconnect_grace = Millis(below(3) == 0 ? below(10'000) : 0);
    settings_.grow_at_safe_point = below(4) == 0;
    settings_.safe_point_timeout = Millis(below(2) == 0 ? 0 : 1 + below(60'000));
    settings_.restart_after_loss = below(4) != 0;
    settings_.max_without_progress = below(2) == 0 ? 0 : 1 + below(3);
    with_orders_ = below(3) == 0;
    unhealthy_one_in_ = below(2) == 0 ? 0 : 4 + below(20);
    HOLDS(defect(settings_).empty());
  }

  // False once the job is over.
  bool step() {
    goes_on_ = false;
    is_final_ = false;
    event();
    settle();
    // But for what its members tell of their last generation as their workers are gone.
    HOLDS(!goes_on_ || round_.phase != Phase::kClosed || round_.ending.exit_code == kNoProgressExitCode);
    HOLDS(!is_final_ || round_.phase == Phase::kClosed);
    test::check_round(round_, settings_, now_);
    // Every waiting agent that was never assigned is connected and known.
    for (const Agent& agent : agents_)
      HOLDS(!agent.in_round || agent.cut || round_.nodes.contains(agent.request.id) ||
            round_.phase == Phase::kClosed || agent.generation >= 0);
    if (round_.phase != Phase::kClosed) return true;
    test::check_over(round_, settings_, new_agent().request, now_);
    return false;
  }

  [[nodiscard]] const SimulationCounts& counts() const { return counts_; }
  [[nodiscard]] Cause::Kind ending() const { return round_.ending.kind; }

 private:
  struct Agent {
    Request request;
    bool in_round = false;
    bool cut = false;              // nothing that it says or is told arrives, until it connects anew
    std::int64_t generation = -1;  // whose workers it runs
    std::int64_t last = -1;        // whose workers were the last to be gone
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }

  Agent new_agent() {
    Agent out;
    out.request.id = {random_(), random_()};
    const int machine = below(8);
    out.request.host = fmt::format("n{}", machine);
    out.request.machine = fmt::format("machine-{}", machine);
    out.request.wanted_ranks = below(4) == 0 ? 1 + below(4) : 2;
    out.request.role = std::string(1, below(5) == 0 ? 'b' : 'a');
    if (with_orders_) out.request.order = machine;
    if (unhealthy_one_in_ > 0 && below(unhealthy_one_in_) == 0) {
      out.request.unhealthy = "has 64 open files";
      ++counts_.unhealthy;
    }
    return out;
  }

  void join_agent(Agent& agent, std::optional<std::int64_t> resume) {
    Settings wanted = settings_;
    const bool wrong = below(50) == 0;
    if (wrong) ++wanted.max_nodes;
    const Admission admission = join(round_, settings_, agent.request, wanted, resume, now_);
    HOLDS(!wrong || admission.kind == Admission::Kind::kRefused);
    agent.in_round = admission.kind != Admission::Kind::kRefused;
    agent.cut = false;
    if (admission.kind == Admission::Kind::kAdmitted) agent.generation = -1;
    // Between two generations it says again that it is ready.
    if (admission.kind == Admission::Kind::kStale && agent.generation < 0)
      HOLDS(ready(round_, agent.request.id, agent.last, 1, now_));
    if (admission.kind != Admission::Kind::kUntold) return;
    HOLDS(round_.phase == Phase::kRunning && agent.generation == -1);
    agent.generation = round_.world.generation;
    ++counts_.told_again;
  }

  [[nodiscard]] static std::optional<std::int64_t> known_to(const Agent& agent) {
    const std::int64_t known = std::max(agent.generation, agent.last);
    return known < 0 ? std::nullopt : std::optional(known);
  }

  // The coordinator is gone, and another takes up what it has recorded. Everybody has to connect anew.
  void restart_coordinator() {
    ++counts_.restarts;
    std::string bytes;
    encode(record_, bytes);
    const auto record = decode_job(bytes);
    HOLDS(record && *record == record_);
    if (below(2) == 0) now_ += Millis(below(20'000));
    const Round before = std::exchange(round_, make_round(*record, now_, Millis(1 + below(20'000))));
    test::check_remembered(before, round_);
    for (Agent& agent : agents_) agent.cut = true;
  }

  // An agent whose connection is broken: the coordinator notices, or it is back before. False: it is no more.
  [[nodiscard]] bool reconnect(Agent& agent) {
    switch (below(8)) {
      case 0:
        break_connection(agent.request.id);
        return true;
      case 1:
        if (below(2) == 0) lost(round_, settings_, agent.request.id, "its lease is over", now_);
        return false;
      default:
        join_agent(agent, known_to(agent));
        return agent.in_round;
    }
  }

  void event() {
    if (below(3) == 0) now_ += Millis(below(4) == 0 ? below(30'000) : below(500));
    if (below(5) != 0) {  // most agents are alive most of the time
      for (Agent& agent : agents_)
        if (agent.in_round && !agent.cut && below(20) != 0) (void)heartbeat(round_, agent.request.id, now_);
    }
    if (agents_.size() < 10 && (agents_.empty() || below(6) == 0)) {
      agents_.push_back(new_agent());
      join_agent(agents_.back(), std::nullopt);
      if (!agents_.back().in_round) agents_.pop_back();
      return;
    }
    const auto index = static_cast<std::size_t>(below(static_cast<int>(agents_.size())));
    Agent& agent = agents_[index];
    const NodeId id = agent.request.id;
    if (round_.world.generation >= 0 && below(300) == 0) return restart_coordinator();
    if (agent.cut) {
      if (!reconnect(agent)) agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
      return;
    }
    if (below(60) == 0) {
      agent.cut = true;
      return;
    }
    switch (below(28)) {
      case 0:
        leave(Request(agent.request));
        std::erase_if(agents_, [&](const Agent& other) { return other.request.id == id; });
        return;
      case 1:
        break_connection(id);
        agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
        return;
      case 2: {  // a broken connection, and back soon
        Agent back = agent;
        break_connection(id);
        agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
        if (below(2) == 0) settle();
        if (round_.phase == Phase::kClosed) return;
        if (below(2) == 0) now_ += Millis(below(3000));
        join_agent(back, known_to(back));
        if (back.in_round) agents_.push_back(std::move(back));
        return;
      }
      case 3: {
        Cause cause;
        cause.exit_code = 1;
        const bool may_restart = below(8) != 0;
        const bool machine_at_fault = below(4) == 0;
        const bool current = worker_failed(round_, id, agent.generation, cause, may_restart, machine_at_fault,
                                           settings_, now_, some_steps());
        HOLDS(!current || agent.generation == round_.world.generation);
        is_final_ = current && !may_restart;
        if (current && machine_at_fault && settings_.cool_down.count() > 0)
          HOLDS(round_.excluded.at(agent.request.machine) == now_ + settings_.cool_down);
        return;
      }
      case 4:
      case 5:
        if (below(4) == 0) {
          for (const Agent& other : agents_)
            if (!other.cut) finish(other);
        } else {
          finish(agent);
        }
        return;
      case 6:
        announced_ = safe_point(round_, agent.generation);
        return;
      case 7:
        if (below(40) == 0) stop(round_, agent.request.host, "told to", 1);
        return;
      case 8:  // words about generations long over, or never begun
        (void)worker_failed(round_, id, round_.world.generation - 1, {}, true, false, settings_, now_);
        (void)finished(round_, id, round_.world.generation + 1, now_);
        (void)store_lost(round_, id, round_.world.generation + 1);
        HOLDS(!safe_point(round_, round_.world.generation - 1));
        HOLDS(!round_.pending);
        return;
      case 9:  // its workers' store went with a former coordinator
        if (store_lost(round_, id, agent.generation)) {
          ++counts_.stores_lost;
          goes_on_ = true;
        }
        return;
      case 10:
        note_join_failure(round_, {fmt::format("n{}", below(200)), "authentication", "another secret", {}});
        HOLDS(round_.join_failures.size() <= kMaxJoinFailures);
        return;
      case 11:
        if (below(4) != 0) return;
        lost(round_, settings_, id, "its lease is over", now_);
        agent.cut = true;
        return;
      default:
        if (agent.generation >= 0 && !is_running(agent)) {
          if (ready(round_, id, agent.generation, 1, now_, some_steps()))
            agent.last = std::exchange(agent.generation, -1);
          record_.progress = progress_of(round_);
        }
    }
  }

  // As somebody dies, is reset or vanishes: only the last two leave it time, and the second little.
  void break_connection(const NodeId& id) {
    constexpr std::array kinds = {Break::kEnd, Break::kReset, Break::kOther};
    const Break how = kinds.at(static_cast<std::size_t>(below(3)));
    const auto at = round_.nodes.find(id);
    const bool was_connected = at != round_.nodes.end() && at->second.connected;
    const bool was_unhealthy = at != round_.nodes.end() && !is_healthy(at->second.request);
    disconnected(round_, settings_, id, "reset", now_, how);
    const auto found = round_.nodes.find(id);
    if (found == round_.nodes.end()) {
      HOLDS(!was_unhealthy || round_.phase == Phase::kClosed ||
            round_.join_failures.back().phase == "preflight");
      return;
    }
    HOLDS(!found->second.connected);
    HOLDS(how != Break::kEnd || !was_connected);
    if (found->second.disconnected_at == now_ && was_connected)
      HOLDS(found->second.back_by - now_ <= (how == Break::kReset
                                                 ? std::min(settings_.reconnect_grace, kResetGrace)
                                                 : settings_.reconnect_grace));
  }

  // It says good-bye where the others can go on without it, and then they do.
  void leave(const Request& request) {
    settle();
    if (round_.phase == Phase::kClosed) return;
    const bool spared = can_spare(round_, settings_, request.id, now_);
    const bool was_waiting = round_.phase == Phase::kGathering && round_.nodes.contains(request.id);
    left(round_, request.id, "told to");
    HOLDS(!round_.nodes.contains(request.id));
    goes_on_ = spared;
    if (spared) ++counts_.spared;
    if (was_waiting && !is_healthy(request))
      HOLDS(round_.join_failures.back().name == request.host &&
            round_.join_failures.back().phase == "preflight");
  }

  StepProgress some_steps() { return below(3) == 0 ? StepProgress{} : StepProgress{0, below(30)}; }

  // Nodes that come interrupt a generation at its safe point, or when they have waited for long enough.
  void grew(const std::optional<Instant>& grow_by) {
    HOLDS(round_.world.slots.size() < static_cast<std::size_t>(settings_.max_nodes));
    HOLDS(!settings_.grow_at_safe_point || announced_ || (grow_by && *grow_by <= now_));
    ++counts_.growths;
  }

  void finish(const Agent& agent) {
    if (finished(round_, agent.request.id, agent.generation, now_)) keep_record();
  }
  void keep_record() { record_ = make_record(settings_, round_, now_); }

  [[nodiscard]] bool is_running(const Agent& agent) const {
    return round_.phase == Phase::kRunning && agent.generation == round_.world.generation;
  }

  void settle() {
    for (int i = 0; i < 100; ++i) {
      const World before = round_.world;
      const std::optional<Instant> grow_by = round_.grow_by;
      const int budget_before = round_.restarts_used;
      const Outcome outcome = decide(round_, settings_, now_);
      if (std::holds_alternative<Idle>(outcome)) {
        announced_ = false;
        return;
      }
      if (!std::holds_alternative<NodesLost>(outcome)) keep_record();
      if (std::holds_alternative<Formed>(outcome)) formed(before);
      if (const auto* over = std::get_if<GenerationOver>(&outcome)) {
        HOLDS(over->generation == before.generation);
        const bool failure =
            over->cause.kind == Cause::Kind::kWorkerFailed || over->cause.kind == Cause::Kind::kNodeLost;
        HOLDS(round_.restarts_used == budget_before + (failure ? 1 : 0));
        HOLDS(settings_.restart_after_loss || over->cause.kind != Cause::Kind::kNodeLost);
        if (over->cause.kind == Cause::Kind::kNodesJoined) grew(grow_by);
      }
      if (const auto* lost = std::get_if<NodesLost>(&outcome)) {
        for (const auto& gone : lost->nodes)
          std::erase_if(agents_, [&](Agent& agent) {
            if (agent.request.id != gone.first) return false;
            agent.in_round = false;
            agent.cut = true;  // it may not know
            return below(2) == 0;
          });
      }
    }
    HOLDS(!"decide() comes to an end");
  }

  void formed(const World& before) {
    const World& world = round_.world;
    ++counts_.worlds;
    HOLDS(generations_.insert(world.generation).second);
    HOLDS(world.generation > before.generation);
    test::check_world(round_, settings_, now_);
    for (const Slot& slot : world.slots) {
      for (Agent& agent : agents_) {
        if (agent.request.id != slot.node) continue;
        HOLDS(agent.generation == -1);                       // it has said that the former workers are gone
        if (!agent.cut && below(20) == 0) agent.cut = true;  // the word is lost with the connection
        if (!agent.cut) agent.generation = world.generation;
      }
    }
    counts_.swaps += test::check_survivors(before, world);
  }

  std::mt19937_64& random_;
  Settings settings_;
  bool with_orders_ = false;
  Round round_;
  JobRecord record_;
  Instant now_{std::chrono::hours(1)};
  std::vector<Agent> agents_;
  std::set<std::int64_t> generations_;
  SimulationCounts counts_;
  int unhealthy_one_in_ = 0;  // 0: none
  bool announced_ = false;    // a safe point, since the last decision
  bool goes_on_ = false;      // what happens in this step ends no job
  bool is_final_ = false;     // or ends it
};

}  // namespace muster::membership
