// SPDX-License-Identifier: Apache-2.0
// A million random events against one round after the other, with the promises checked after each: agents
// that come, fail, leave and are cut off, words that are lost on the way, coordinators that begin anew from
// their record. The seed is printed; MUSTER_SEED repeats a run.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <set>

#include <fmt/format.h>

#include "rendezvous/job_record.h"
#include "rendezvous/membership.h"
#include "rendezvous/waiting_reason.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/round_promises.h"

using namespace muster;
using namespace muster::membership;
using namespace std::chrono_literals;
using test::check_survivors;

namespace {

// One job with a handful of agents, each of which may know an outdated generation.
class Simulation {
 public:
  explicit Simulation(std::mt19937_64& random) : random_(random) {
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
    settings_.safe_point_patience = Millis(below(2) == 0 ? 0 : 1 + below(60'000));
    settings_.restart_after_loss = below(4) != 0;
    settings_.max_without_progress = below(2) == 0 ? 0 : 1 + below(3);
    with_orders_ = below(3) == 0;
    HOLDS(defect(settings_).empty());
  }

  // False once the job is over.
  bool step() {
    event();
    settle();
    check();
    return round_.phase != Phase::kClosed;
  }

  [[nodiscard]] int worlds() const { return worlds_; }
  [[nodiscard]] int swaps() const { return swaps_; }
  [[nodiscard]] int told_again() const { return told_again_; }
  [[nodiscard]] int restarts() const { return restarts_; }
  [[nodiscard]] int growths() const { return growths_; }
  [[nodiscard]] Cause::Kind ending() const { return round_.ending.kind; }

 private:
  struct Agent {
    Request request;
    bool in_round = false;
    bool cut = false;              // nothing that it says or is told arrives, until it connects anew
    std::int64_t generation = -1;  // whose workers it runs
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
    if (admission.kind != Admission::Kind::kUntold) return;
    HOLDS(round_.phase == Phase::kRunning && agent.generation == -1);
    agent.generation = round_.world.generation;
    ++told_again_;
  }

  // The coordinator is gone, and another takes up what it has recorded. Everybody has to connect anew.
  void restart_coordinator() {
    ++restarts_;
    std::string bytes;
    encode(record_, bytes);
    const auto record = decode_job(bytes);
    HOLDS(record && *record == record_);
    if (below(2) == 0) now_ += Millis(below(20'000));
    round_ = make_round(*record, now_, Millis(1 + below(20'000)));
    for (Agent& agent : agents_) agent.cut = true;
  }

  // An agent whose connection is broken: the coordinator notices, or it is back before. False: it is no more.
  [[nodiscard]] bool reconnect(Agent& agent) {
    switch (below(8)) {
      case 0:
        disconnected(round_, settings_, agent.request.id, "reset", now_);
        return true;
      case 1:
        return false;
      default:
        join_agent(agent, agent.generation >= 0 ? std::optional(agent.generation) : std::nullopt);
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
    switch (below(24)) {
      case 0:
        left(round_, id, "told to");
        agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
        return;
      case 1:
        disconnected(round_, settings_, id, "reset", now_);
        agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
        return;
      case 2: {  // a broken connection, and back soon
        Agent back = agent;
        disconnected(round_, settings_, id, "reset", now_);
        agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
        if (below(2) == 0) settle();
        if (round_.phase == Phase::kClosed) return;
        if (below(2) == 0) now_ += Millis(below(3000));
        join_agent(back, back.generation >= 0 ? std::optional(back.generation) : std::nullopt);
        if (back.in_round) agents_.push_back(std::move(back));
        return;
      }
      case 3: {
        Cause cause;
        cause.exit_code = 1;
        const bool current = worker_failed(round_, id, agent.generation, cause, below(8) != 0, below(4) == 0,
                                           settings_, now_, some_steps());
        HOLDS(!current || agent.generation == round_.world.generation);
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
        HOLDS(!round_.pending);
        return;
      default:
        if (agent.generation >= 0 && !is_running(agent)) {
          if (ready(round_, id, agent.generation, 1, now_, some_steps())) agent.generation = -1;
        }
    }
  }

  Reached some_steps() { return below(3) == 0 ? Reached{} : Reached{0, below(30)}; }

  // Nodes that come interrupt a generation at its safe point, or when they have waited for long enough.
  void grew(const std::optional<Instant>& grow_by) {
    HOLDS(round_.world.slots.size() < static_cast<std::size_t>(settings_.max_nodes));
    HOLDS(!settings_.grow_at_safe_point || announced_ || (grow_by && *grow_by <= now_));
    ++growths_;
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
    ++worlds_;
    HOLDS(generations_.insert(world.generation).second);
    HOLDS(world.generation > before.generation);
    const int size = static_cast<int>(world.slots.size());
    HOLDS(size >= settings_.min_nodes && size <= settings_.max_nodes);
    int next = 0;
    std::map<std::string, int> next_role;
    std::set<NodeId> members;
    for (const Slot& slot : world.slots) {
      HOLDS(slot.base_rank == next);
      HOLDS(slot.role_base_rank == next_role[slot.role]);
      next += slot.ranks;
      next_role[slot.role] += slot.ranks;
      HOLDS(members.insert(slot.node).second);
      const Node& node = round_.nodes.at(slot.node);
      HOLDS(node.connected && !node.ready && !node.finished);
      HOLDS(now_ - node.last_heard <= settings_.heartbeat_timeout / 2);
      HOLDS(!round_.excluded.contains(slot.machine) || round_.excluded.at(slot.machine) <= now_);
      for (Agent& agent : agents_) {
        if (agent.request.id != slot.node) continue;
        HOLDS(agent.generation == -1);                       // it has said that the former workers are gone
        if (!agent.cut && below(20) == 0) agent.cut = true;  // the word is lost with the connection
        if (!agent.cut) agent.generation = world.generation;
      }
    }
    HOLDS(next == world.world_size);
    for (const Slot& slot : world.slots) HOLDS(slot.role_world_size == next_role[slot.role]);
    swaps_ += check_survivors(before, world);
  }

  void check() {
    HOLDS(round_.restarts_used <= settings_.max_restarts);
    HOLDS(!round_.pending);
    HOLDS(!round_.safe_point);
    HOLDS(!round_.grow_by || (round_.phase == Phase::kRunning && settings_.safe_point_patience.count() > 0));
    if (settings_.max_without_progress > 0 && round_.phase != Phase::kClosed)
      HOLDS(round_.steps.fruitless < settings_.max_without_progress);
    int num_ready = 0;
    int num_stopping = 0;
    int num_finished = 0;
    std::set<int> orders;
    for (const auto& [id, node] : round_.nodes) {
      if (node.connected && node.ready) ++num_ready;
      if (node.connected && !node.ready) ++num_stopping;
      if (node.connected && node.request.order) HOLDS(orders.insert(*node.request.order).second);
      if (node.finished) ++num_finished;
      HOLDS(node.connected || !node.ready);
    }
    HOLDS(orders.size() == round_.orders.size());
    HOLDS(round_.num_ready == num_ready);
    if (round_.phase == Phase::kGathering) {
      HOLDS(round_.num_stopping == num_stopping);
      HOLDS(round_.nodes.empty() || now_ < round_.join_deadline);
      HOLDS(round_.join_deadline == Instant::max() ||
            round_.join_deadline - round_.gathering_since == settings_.join_timeout);
      HOLDS(explain(round_, settings_, now_) == explain(round_, settings_, now_));
      HOLDS(!to_text(explain(round_, settings_, now_)).empty());
    }
    if (round_.phase == Phase::kRunning) {
      HOLDS(round_.num_finished >= num_finished);
      HOLDS(round_.num_finished < static_cast<int>(round_.world.slots.size()));
    }
    HOLDS(next_deadline(round_) > now_);
    // Every waiting agent that was never assigned is connected and known.
    for (const Agent& agent : agents_)
      HOLDS(!agent.in_round || agent.cut || round_.nodes.contains(agent.request.id) ||
            round_.phase == Phase::kClosed || agent.generation >= 0);
  }

  std::mt19937_64& random_;
  Settings settings_;
  bool with_orders_ = false;
  Round round_;
  JobRecord record_;
  Instant now_{1h};
  std::vector<Agent> agents_;
  std::set<std::int64_t> generations_;
  int worlds_ = 0;
  int swaps_ = 0;
  int told_again_ = 0;
  int restarts_ = 0;
  int growths_ = 0;
  bool announced_ = false;  // a safe point, since the last decision
};

}  // namespace

TEST_CASE("a million random events break no promise of the round") {
  const char* given = std::getenv("MUSTER_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  [[maybe_unused]] const auto start = SteadyClock::now();
  int events = 0;
  int jobs = 0;
  int worlds = 0;
  int swaps = 0;
  int told_again = 0;
  int restarts = 0;
  int growths = 0;
  std::map<Cause::Kind, int> endings;
  // Sanitizers make it several times slower; there a bound keeps the test short.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const auto enough = [&] { return SteadyClock::now() - start >= 15s; };
#else
  const auto enough = [] { return false; };
#endif
  while (events < 1'000'000 && !enough()) {
    Simulation simulation(random);
    ++jobs;
    int step = 0;
    try {
      for (bool going = true; going && step < 5000; ++step) going = simulation.step();
    } catch (const std::exception& error) {
      FAIL("seed " << seed << ", job " << jobs << ", step " << step << ": " << error.what());
    }
    events += step;
    worlds += simulation.worlds();
    swaps += simulation.swaps();
    told_again += simulation.told_again();
    restarts += simulation.restarts();
    growths += simulation.growths();
    ++endings[simulation.ending()];
  }
  std::cout << events << " events, " << jobs << " jobs, " << worlds << " worlds, " << swaps
            << " nodes replaced or dropped, " << restarts << " coordinators begun anew, " << told_again
            << " worlds told again\n";
  for (const auto& [kind, count] : endings) std::cout << "  " << count << " x " << to_string(kind) << '\n';
  REQUIRE(worlds > jobs / 4);
  REQUIRE(swaps > 0);
  REQUIRE(told_again > 0);
  REQUIRE(restarts > 0);
  REQUIRE(growths > 0);
  REQUIRE(endings.size() >= 4);
}
