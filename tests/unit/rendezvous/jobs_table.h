// SPDX-License-Identifier: Apache-2.0
// Table: a coordinator's Jobs at which tests let agents sit down, and what these are told.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/coordinator/jobs.h"

namespace muster {

struct Table {
  explicit Table(const JobsOptions& options = {}) : jobs(options) {}

  void join(ConnectionId connection, std::string job, std::uint64_t node, int nodes,
            std::string unhealthy = {}) {
    jobs.connected(connection, std::move(job), "127.0.0.1");
    control::Join message;
    message.request.id = {0, node};
    message.request.host = "n" + std::to_string(node);
    message.request.unhealthy = std::move(unhealthy);
    message.settings.min_nodes = message.settings.max_nodes = nodes;
    message.settings.max_restarts = 1;
    message.settings.spares = spares;
    message.age = age;
    jobs.receive(connection, message, now);
  }
  // What a connection was told last, of one kind.
  template <class T>
  std::optional<T> told(ConnectionId connection) const {
    std::optional<T> out;
    for (const Delivery& delivery : effects.deliveries)
      if (std::find(delivery.to.begin(), delivery.to.end(), connection) != delivery.to.end())
        if (const auto* message = std::get_if<T>(&delivery.message)) out = *message;
    return out;
  }

  Jobs jobs;
  JobsEffects& effects = jobs.effects();
  Instant now{std::chrono::hours(1)};
  int spares = 0;
  Millis age{0};  // of the agents
};

}  // namespace muster
