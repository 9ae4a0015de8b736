// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/world.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

namespace muster {

std::string to_text(const StepProgress& reached) {
  if (!reached.known()) return "no step";
  if (reached.epoch <= 0) return fmt::format("step {}", std::max<std::int64_t>(reached.step, 0));
  if (reached.step < 0) return fmt::format("epoch {}", reached.epoch);
  return fmt::format("epoch {} step {}", reached.epoch, reached.step);
}

}  // namespace muster

namespace muster::membership {

std::string nodes_text(const Settings& settings) {
  if (settings.min_nodes == settings.max_nodes) return fmt::format("{}", settings.max_nodes);
  return fmt::format("{}:{}", settings.min_nodes, settings.max_nodes);
}

std::string to_text(const NodeId& id) {
  return fmt::format("{:016x}{:016x}", id.high, id.low);
}

std::string_view to_string(Cause::Kind kind) {
  // Indexed by Cause::Kind.
  constexpr std::array<std::string_view, static_cast<std::size_t>(Cause::Kind::kStoreLost) + 1> kTexts = {
      "a worker failed", "a node was lost",    "a node left",
      "nodes joined",    "it was stopped",     "the rendezvous timed out",
      "it succeeded",    "it ended meanwhile", "the workers' store was lost"};
  return kTexts[static_cast<std::size_t>(kind)];
}

std::string difference(const Settings& wanted, const Settings& job) {
  if (wanted == job) return {};
  const auto texts = [](const Settings& of) {
    const double seconds = std::chrono::duration<double>(of.safe_point_timeout).count();
    return std::array{
        "--nnodes=" + nodes_text(of), fmt::format("--spares={}", of.spares),
        fmt::format("--max-restarts={}", of.max_restarts),
        fmt::format("--max-restarts-without-progress={}", of.max_without_progress),
        fmt::format("{} after the loss of a node (--rdzv-backend, --restart-on, --no-restart-on)",
                    of.restart_after_loss ? "a restart" : "no restart"),
        !of.grow_at_safe_point ? std::string("--join-at=now")
        : seconds == 0         ? std::string("--join-at=safe-point")
                               : fmt::format("--join-at=safe-point:{:g}", seconds),
        // The coordinator judges all by the job's time-out; an agent with another one is lost for it.
        fmt::format("a heartbeat timeout (keep_alive_interval times keep_alive_max_attempt) of {} ms",
                    of.heartbeat_timeout.count())};
  };
  const auto here = texts(wanted), there = texts(job);
  const auto [one, other] = std::mismatch(here.begin(), here.end(), there.begin());
  return one == here.end() ? std::string() : fmt::format("wants {}, the job has {}", *one, *other);
}

std::string defect(const Settings& settings) {
  constexpr int kMost = 100'000;
  if (settings.min_nodes < 1 || settings.max_nodes < settings.min_nodes || settings.max_nodes > kMost)
    return fmt::format("--nnodes={} is not 1 <= MIN <= MAX <= {}", nodes_text(settings), kMost);
  if (settings.spares < 0 || settings.spares > kMost)
    return fmt::format("--spares={} is out of range", settings.spares);
  if (settings.max_restarts < 0) return fmt::format("--max-restarts={} is negative", settings.max_restarts);
  if (settings.max_without_progress < 0)
    return fmt::format("--max-restarts-without-progress={} is negative", settings.max_without_progress);
  constexpr Millis kLongest{std::int64_t{1000} * 86400 * 365};
  const std::array times = {
      std::pair{"join timeout", settings.join_timeout},
      std::pair{"last call timeout", settings.last_call_timeout},
      std::pair{"stop timeout", settings.stop_timeout},
      std::pair{"heartbeat timeout", settings.heartbeat_timeout},
      std::pair{"cool-down", settings.cool_down},
      std::pair{"reconnect grace", settings.reconnect_grace},
      std::pair{"safe point timeout", settings.safe_point_timeout},
  };
  for (const auto& [name, time] : times)
    if (time.count() < 0 || time > kLongest)
      return fmt::format("{} of {} ms is out of range", name, time.count());
  if (settings.join_timeout.count() == 0 || settings.heartbeat_timeout.count() == 0)
    return "the join and heartbeat timeouts must be positive";
  return {};
}

}  // namespace muster::membership
