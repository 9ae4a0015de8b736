// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/waiting_reason.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "rendezvous/base/text.h"

namespace muster::membership {
namespace {

struct Line {
  std::string name;
  std::string_view phase;
  std::string text;
};

// Where every node says which place is its own: the places of which nothing was heard.
std::vector<int> missing_orders(const Round& round, const Settings& settings) {
  constexpr int kMaxPlaces = 65536;
  std::vector<int> taken;
  for (const auto& [id, node] : round.nodes) {
    if (!node.request.order) return {};  // it may be any of them
    taken.push_back(*node.request.order);
  }
  if (taken.empty()) return {};
  for (const JoinFailure& failure : round.join_failures)
    if (failure.order) taken.push_back(*failure.order);
  std::ranges::sort(taken);
  std::vector<int> out;
  for (int place = 0; place < std::min(settings.max_nodes, kMaxPlaces); ++place)
    if (!std::ranges::binary_search(taken, place)) out.push_back(place);
  return out;
}

// Whoever was refused before it could prove who it is may be one of them.
std::string_view missing_text(const Round& round) {
  return std::ranges::any_of(round.join_failures, &JoinFailure::unproven) ? "did not join"
                                                                          : "never connected";
}

bool is_silent(const Round& round, const Node& node) {
  return round.silent_since && node.connected && node.last_heard < *round.silent_since;
}

std::string what_runs(const Round& round) {
  return fmt::format("{} nodes run generation {}", round.world.slots.size(), round.world.generation);
}

// Nodes that could not join, then those that are here and cannot be counted.
std::vector<Line> find_obstacles(const Round& round, Instant now) {
  std::vector<Line> out;
  out.reserve(round.join_failures.size() + round.nodes.size());
  for (const JoinFailure& failure : round.join_failures)
    out.push_back({failure.name, failure.phase, failure.text});
  std::vector<const Node*> nodes;
  for (const auto& [id, node] : round.nodes)
    if (!eligible(round, node, now) || is_silent(round, node)) nodes.push_back(&node);
  std::ranges::sort(nodes, {}, &Node::arrival);
  for (const Node* node : nodes)
    out.push_back({node->request.host, is_healthy(node->request) ? "joined" : "preflight",
                   explain_held_back(round, *node, now)});
  return out;
}

}  // namespace

std::string explain_held_back(const Round& round, const Node& node, Instant now) {
  if (!is_healthy(node.request)) return "is unhealthy: " + node.request.unhealthy;
  if (!node.connected) return "lost its connection and may come back";
  if (!node.ready) return "is stopping its workers";
  if (is_silent(round, node)) return "has missed a heartbeat";
  return eligible(round, node, now) ? "" : "failed and is not used for a while";
}

WaitingReason explain(const Round& round, const Settings& settings, Instant now) {
  WaitingReason out;
  out.min_nodes = settings.min_nodes;
  out.max_nodes = settings.max_nodes;
  out.last_call = round.last_call.has_value();
  out.present = static_cast<int>(std::ranges::count_if(round.nodes, [&](const auto& entry) {
    return eligible(round, entry.second, now) && !is_silent(round, entry.second);
  }));
  const auto add = [&](std::string text) {
    if (out.details.size() < kMaxDetails)
      out.details.push_back(std::move(text));
    else
      ++out.num_more;
  };
  for (const Line& line : find_obstacles(round, now)) add(fmt::format("{} {}", line.name, line.text));
  // A short list only: at the beginning nearly all are missing.
  if (const auto missing = missing_orders(round, settings); !missing.empty() && missing.size() <= 16)
    add(fmt::format("{} {}", numbered("node rank", missing, ", "), missing_text(round)));
  return out;
}

std::string to_text(const WaitingReason& reason) {
  std::string out;
  if (reason.min_nodes == reason.max_nodes)
    out = fmt::format("{}/{} nodes", reason.present, reason.max_nodes);
  else
    out = fmt::format("{} of {} to {} nodes{}", reason.present, reason.min_nodes, reason.max_nodes,
                      reason.last_call ? ", last call" : "");
  for (const std::string& detail : reason.details) out += "; " + detail;
  if (reason.num_more > 0) out += fmt::format("; and {} more", reason.num_more);
  return out;
}

std::string explain_outside(const Round& round, const Settings& settings, const NodeId& id) {
  const Node& self = round.nodes.at(id);
  if (!is_healthy(self.request)) return "unhealthy; " + what_runs(round);
  const auto before = std::ranges::count_if(round.nodes, [&](const auto& entry) {
    const Node& node = entry.second;
    return node.connected && node.ready && is_healthy(node.request) && node.arrival < self.arrival;
  });
  return explain_outside(round, settings, static_cast<int>(before));
}

std::string explain_outside(const Round& round, const Settings& settings, int before) {
  const std::string runs = what_runs(round);
  if (static_cast<int>(round.world.slots.size()) < settings.max_nodes)
    return fmt::format("waits for the job's next {}; {}",
                       !settings.grow_at_safe_point ? "round"
                       : settings.safe_point_timeout.count() == 0
                           ? "checkpoint (--join-at)"
                           : fmt::format("checkpoint, {:g} s at most (--join-at)",
                                         std::chrono::duration<double>(settings.safe_point_timeout).count()),
                       runs);
  if (before < settings.spares) return fmt::format("spare {} of {}; {}", before + 1, settings.spares, runs);
  return fmt::format("all places of the job are taken (another job needs another --rdzv-id); {}", runs);
}

std::vector<NodeId> surplus(const Round& round, const Settings& settings) {
  if (static_cast<int>(round.world.slots.size()) < settings.max_nodes) return {};
  std::vector<const Node*> outside;
  for (const auto& [id, node] : round.nodes)
    if (node.connected && node.ready && is_healthy(node.request) && node.group_rank < 0)
      outside.push_back(&node);
  std::ranges::sort(outside, {}, &Node::arrival);
  std::vector<NodeId> out;
  for (auto i = static_cast<std::size_t>(settings.spares); i < outside.size(); ++i)
    out.push_back(outside[i]->request.id);
  return out;
}

std::string timeout_report(const Round& round, const Settings& settings, Instant now) {
  const WaitingReason reason = explain(round, settings, now);
  const double seconds = seconds_between(round.gathering_since, now);
  std::string out = fmt::format("rendezvous timed out after {:.0f} s: {} of {} nodes were ready", seconds,
                                reason.present, nodes_text(settings));
  constexpr std::size_t kMaxLines = 64;
  std::size_t lines = 0;
  for (const Line& line : find_obstacles(round, now))
    if (lines++ < kMaxLines) out += fmt::format("\n  {}: {}: {}", line.name, line.phase, line.text);
  if (lines > kMaxLines) out += fmt::format("\n  and {} more", lines - kMaxLines);
  std::string missing;
  if (const auto orders = missing_orders(round, settings); !orders.empty())
    missing = numbered("node rank", orders, ", ");
  else if (const auto unknown = settings.min_nodes - reason.present - static_cast<int>(lines); unknown > 0)
    missing = counted(unknown, "node");
  if (!missing.empty())
    out += fmt::format("\n  {}: {}; does muster run there, with this address and this job's id?", missing,
                       missing_text(round));
  return out;
}

}  // namespace muster::membership
