// SPDX-License-Identifier: Apache-2.0
// Table: a coordinator's Jobs whose log is replayed when it "crashes", and what its agents are told. For the
// tests of what is kept of jobs.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/wal/journal.h"
#include "tests/support/catch.h"
#include "tests/support/log_records.h"

namespace muster::test {

using namespace std::chrono_literals;

inline constexpr Millis kGrace = 60s;

// A coordinator whose log is replayed when it "crashes". Agents of node n have connection n.
struct Table {
  Table() { jobs->record_to(test::into(log)); }

  void crash() {
    std::string file = journal::file_header(1);
    // Told the log's own records again, and what a rewritten log would hold: both have to be the same.
    RecoveredState rewritten;
    jobs->describe(rewritten.sink(), now);
    if (!log.empty()) file += log.seal(1, file.size());
    RecoveredState saved;
    REQUIRE(journal::replay(file, saved.sink()).end == journal::Replayed::End::kClean);
    REQUIRE(saved.jobs.size() == rewritten.jobs.size());
    for (const auto& [name, record] : saved.jobs) {
      JobRecord other = rewritten.jobs.at(name);
      REQUIRE(record.world == other.world);
      REQUIRE(record.restarts_used == other.restarts_used);
      REQUIRE(record.phase == other.phase);
      REQUIRE(record.progress == other.progress);
      REQUIRE(record.finished.size() == other.finished.size());
    }
    now += 5s;
    jobs = std::make_unique<Jobs>(JobsOptions{});
    for (const auto& [name, record] : saved.jobs) jobs->restore(name, record, now, kGrace);
    jobs->record_to(test::into(log));
    jobs->advance(now);
  }

  int without_progress = 0;
  void join(std::uint64_t node, int nodes, std::optional<std::int64_t> resume = {}) {
    jobs->connected(node, "job", "127.0.0.1");
    control::Join message;
    message.request.id = {7, node};
    message.request.host = "n" + std::to_string(node);
    message.request.master_port = static_cast<std::uint16_t>(4000 + node);
    message.settings.min_nodes = message.settings.max_nodes = nodes;
    message.settings.max_restarts = 3;
    message.settings.max_without_progress = without_progress;
    message.settings.cool_down = 0ms;
    message.resume = resume;
    jobs->receive(node, message, now);
  }
  void say(std::uint64_t node, const control::Message& message) { jobs->receive(node, message, now); }
  void pass(Millis time) {
    const Instant end = now + time;
    // Agents beat their hearts meanwhile.
    while (now < end) {
      now = std::min(end, now + 1s);
      for (std::uint64_t node = 1; node <= 4; ++node) jobs->receive(node, control::Heartbeat{}, now);
      jobs->advance(now);
    }
  }
  template <class T>
  std::vector<T> told(ConnectionId connection) const {
    std::vector<T> out;
    for (const Delivery& delivery : jobs->effects().deliveries)
      if (std::find(delivery.to.begin(), delivery.to.end(), connection) != delivery.to.end())
        if (const auto* message = std::get_if<T>(&delivery.message)) out.push_back(*message);
    return out;
  }
  const membership::Round& round() const {
    REQUIRE(jobs->find_round("job") != nullptr);
    return *jobs->find_round("job");
  }

  journal::Encoder log;
  std::unique_ptr<Jobs> jobs = std::make_unique<Jobs>(JobsOptions{});
  Instant now{1h};
};

}  // namespace muster::test
