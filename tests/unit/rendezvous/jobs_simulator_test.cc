// SPDX-License-Identifier: Apache-2.0
// Random words of many agents to one coordinator with a few jobs that begin, end and begin anew, its killing
// and starting again from what it recorded, and the time it remembers jobs that are over. After each: no two
// worlds with one generation, no rank twice, and whoever took part hears how it ended, however late it comes.
// The seed is printed; MUSTER_SEED repeats a run.
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/wal/journal.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/round_promises.h"

using namespace muster;
using namespace std::chrono_literals;
using membership::NodeId;

namespace {

// What was told of one generation.
struct Told {
  std::int32_t world_size = 0;
  std::int32_t num_nodes = 0;
  std::map<std::int32_t, std::pair<std::int32_t, NodeId>> places;  // first rank: number of ranks, whose
};

struct Agent {
  std::string job;
  control::Join join;
  ConnectionId connection = 0;   // 0: none
  bool deaf = false;             // connected, and nothing arrives in either direction
  std::int64_t generation = -1;  // whose workers run here
  std::int64_t highest = -1;     // that it was told of
  std::int64_t last = -1;        // whose workers are gone
  bool stopping = false;
  bool over = false;  // it was told that its job is, or that it is not wanted
};

class Coordinator {
 public:
  explicit Coordinator(std::mt19937_64& random) : random_(random) {
    options_.keep = Millis(below(2) == 0 ? 0 : below(100'000));
    options_.return_grace = Millis(1 + below(100'000));
    settings_.max_nodes = 1 + below(4);
    settings_.min_nodes = 1 + below(settings_.max_nodes);
    settings_.spares = below(2);
    settings_.max_restarts = below(4);
    settings_.join_timeout = Millis(20'000 + below(60'000));
    settings_.last_call_timeout = Millis(below(5'000));
    settings_.cool_down = Millis(below(5'000));
    settings_.reconnect_grace = Millis(below(3) == 0 ? 0 : below(10'000));
    begin();
  }

  void step() {
    now_ += Millis(below(100) == 0 ? below(200'000) : below(400));
    for (const auto& agent : agents_)
      if (talks(*agent) && below(30) != 0) say(*agent, control::Heartbeat{});
    if (jobs_->next_deadline() <= now_) jobs_->advance(now_);
    deliver();
    event();
    deliver();
    std::erase_if(agents_, [](const auto& agent) { return agent->over && agent->connection == 0; });
    HOLDS(jobs_->num_jobs() <= kNames.size());
  }

  // All go, and in the end nothing of them is left.
  void finish() {
    for (const auto& agent : agents_) hang_up(*agent, membership::Break::kEnd);
    deliver();
    for (int i = 0; i < 100 && jobs_->next_deadline() != Instant::max(); ++i) {
      now_ = std::max(now_, jobs_->next_deadline());
      jobs_->advance(now_);
      deliver();
    }
    HOLDS(jobs_->num_jobs() == 0 && saved_->jobs.empty());
  }

  int worlds = 0;
  int restarts = 0;
  int told_late = 0;
  int began_anew = 0;

 private:
  static constexpr std::array kNames = {"a", "b"};

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  [[nodiscard]] static bool talks(const Agent& agent) { return agent.connection != 0 && !agent.deaf; }

  void begin() {
    jobs_ = std::make_unique<Jobs>(options_);
    jobs_->record_to(saved_->sink());
  }

  // Killed: who was connected notices, and nobody is told anything.
  void restart() {
    ++restarts;
    for (const auto& agent : agents_) {
      agent->connection = 0;
      agent->deaf = false;
    }
    const auto records = saved_->jobs;
    begin();
    for (const auto& [name, record] : records)
      jobs_->restore(std::string(name), record, now_, Millis(1 + below(30'000)));
    deliver();
  }

  void say(const Agent& agent, const control::Message& message) {
    jobs_->receive(agent.connection, message, now_);
  }

  void hang_up(Agent& agent, membership::Break how) {
    if (agent.connection == 0) return;
    jobs_->disconnected(std::exchange(agent.connection, 0), "gone", now_, how);
    agent.deaf = false;
  }

  void connect(Agent& agent) {
    const membership::Round* round = jobs_->find_round(agent.job);
    bool took_part = false;
    if (round != nullptr && round->phase == membership::Phase::kClosed)
      for (const membership::Slot& slot : round->world.slots) took_part |= slot.node == agent.join.request.id;
    const membership::Cause ending = took_part ? round->ending : membership::Cause{};
    agent.connection = ++last_connection_;
    agent.join.resume.reset();
    if (const auto known = std::max(agent.generation, agent.last); known >= 0) agent.join.resume = known;
    agent.stopping = false;
    jobs_->connected(agent.connection, agent.job, "10.0.0.1");
    say(agent, agent.join);
    if (!took_part) return;
    for (const Delivery& delivery : jobs_->effects().deliveries)
      if (const auto* closed = std::get_if<control::Closed>(&delivery.message);
          closed != nullptr && delivery.to == std::vector<ConnectionId>{agent.connection})
        took_part = closed->cause != ending;
    HOLDS(!took_part);  // it was told how it ended
    ++told_late;
  }

  void event() {
    if (below(400) == 0) return restart();
    if (agents_.empty() || (agents_.size() < 10 && below(12) == 0)) {
      auto agent = std::make_unique<Agent>();
      agent->job = kNames.at(static_cast<std::size_t>(below(2)));
      agent->join.request.id = {random_(), random_()};
      agent->join.request.host = agent->join.request.machine = fmt::format("n{}", below(100));
      agent->join.request.wanted_ranks = 1 + below(3);
      agent->join.request.addresses = {"10.0.0.1"};
      agent->join.settings = settings_;
      agents_.push_back(std::move(agent));
      return connect(*agents_.back());
    }
    Agent& agent = *agents_[static_cast<std::size_t>(below(static_cast<int>(agents_.size())))];
    if (agent.connection == 0) {
      if (below(6) == 0)
        agent.over = true;  // it never comes back
      else
        connect(agent);
      return;
    }
    constexpr std::array kBreaks = {membership::Break::kEnd, membership::Break::kReset,
                                    membership::Break::kOther};
    const int choice = below(40);
    if (agent.deaf || choice == 0) return hang_up(agent, kBreaks.at(static_cast<std::size_t>(below(3))));
    if (choice == 1) {
      agent.deaf = true;
    } else if (choice == 2) {
      say(agent, control::Leave{"told to"});
      agent.over = true;
    } else if (choice == 3 && below(4) == 0) {
      say(agent, control::Stop{1, "told to", below(2) == 0});
    } else if (choice < 20 && agent.stopping) {
      agent.last = std::exchange(agent.generation, -1);
      say(agent, control::Ready{agent.last, 1});
      agent.stopping = false;
    } else if (choice == 20 && agent.generation >= 0) {
      say(agent, control::WorkerFailed{agent.generation, 0, 1, below(8) != 0, false, "failed"});
    } else if (choice < 24 && agent.generation >= 0) {
      say(agent, control::Finished{agent.generation});
    }
  }

  void deliver() {
    while (!jobs_->effects().deliveries.empty() || !jobs_->effects().log.empty()) {
      const JobsEffects effects = std::exchange(jobs_->effects(), {});
      for (const std::string& line : effects.log) note(line);
      for (const Delivery& delivery : effects.deliveries) {
        for (const ConnectionId id : delivery.to) hear(id, delivery.message);
        if (!delivery.close) continue;
        for (const ConnectionId id : delivery.to)
          jobs_->disconnected(id, "closed", now_, membership::Break::kEnd);
      }
    }
  }

  // "job a: forgotten": its generations may begin again. "job a: new": they go on.
  void note(const std::string& line) {
    for (const std::string name : kNames) {
      if (line == "job " + name + ": forgotten") told_.erase(name);
      if (line.starts_with("job " + name + ": new")) ++began_anew;
    }
  }

  void hear(ConnectionId id, const control::Message& message) {
    const auto found = std::find_if(agents_.begin(), agents_.end(),
                                    [&](const auto& agent) { return agent->connection == id; });
    if (found == agents_.end()) return;
    Agent& agent = **found;
    if (const auto* assignment = std::get_if<control::Assignment>(&message)) enter(agent, *assignment);
    if (agent.deaf) return;
    if (std::holds_alternative<control::Closed>(message)) {
      HOLDS(jobs_->find_round(agent.job) != nullptr);
      agent.over = true;
      hang_up(agent, membership::Break::kEnd);
    } else if (std::holds_alternative<control::Refused>(message)) {
      agent.over = true;
      agent.connection = 0;  // deliver() closes it
    } else if (const auto* over = std::get_if<control::GenerationOver>(&message)) {
      if (agent.generation < 0) {
        agent.last = std::max(agent.last, over->generation);
        say(agent, control::Ready{over->generation, 1});
      } else if (over->generation == agent.generation)
        agent.stopping = true;
    }
  }

  void enter(Agent& agent, const control::Assignment& assignment) {
    Told& told = told_[agent.job][assignment.generation];
    if (told.places.empty()) {
      ++worlds;
      told.world_size = assignment.world_size;
      told.num_nodes = assignment.group_world_size;
    }
    HOLDS(told.world_size == assignment.world_size && told.num_nodes == assignment.group_world_size);
    const auto [place, is_new] =
        told.places.try_emplace(assignment.base_rank, std::pair(assignment.ranks, agent.join.request.id));
    HOLDS(is_new || place->second == std::pair(assignment.ranks, agent.join.request.id));
    HOLDS(place == told.places.begin() ||
          std::prev(place)->first + std::prev(place)->second.first <= place->first);
    const auto next = std::next(place);
    HOLDS(assignment.base_rank + assignment.ranks <=
          (next == told.places.end() ? told.world_size : next->first));
    if (agent.deaf) return;
    HOLDS(agent.generation < 0);  // its former workers are gone
    HOLDS(assignment.generation > agent.highest);
    agent.generation = agent.highest = assignment.generation;
  }

  std::mt19937_64& random_;
  JobsOptions options_;
  membership::Settings settings_;
  std::unique_ptr<RecoveredState> saved_ = std::make_unique<RecoveredState>();
  std::unique_ptr<Jobs> jobs_;
  Instant now_{1h};
  std::vector<std::unique_ptr<Agent>> agents_;
  ConnectionId last_connection_ = 0;
  std::map<std::string, std::map<std::int64_t, Told>> told_;
};

}  // namespace

TEST_CASE(
    "whatever agents say and however often the coordinator is killed, no job has a wrong world or is "
    "forgotten by its agents") {
  const char* given = std::getenv("MUSTER_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  int worlds = 0;
  int restarts = 0;
  int told_late = 0;
  int began_anew = 0;
  constexpr int kRuns = 150;
  constexpr int kSteps = 2000;
  for (int run = 0; run < kRuns; ++run) {
    Coordinator coordinator(random);
    int step = 0;
    try {
      for (; step < kSteps; ++step) coordinator.step();
      coordinator.finish();
    } catch (const std::exception& error) {
      FAIL("seed " << seed << ", run " << run << ", step " << step << ": " << error.what());
    }
    worlds += coordinator.worlds;
    restarts += coordinator.restarts;
    told_late += coordinator.told_late;
    began_anew += coordinator.began_anew;
  }
  std::cout << kRuns * kSteps << " events, " << worlds << " worlds, " << restarts << " coordinators killed, "
            << began_anew << " jobs, " << told_late << " agents heard late how theirs ended\n";
  REQUIRE(worlds > kRuns);
  REQUIRE(restarts > 0);
  REQUIRE(told_late > 0);
  REQUIRE(began_anew > kRuns);
}
