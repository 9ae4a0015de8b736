// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/jobs.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace muster {

using control::Refused;
using membership::NodeId;
using membership::Phase;

namespace {

std::string cause_text(const membership::Cause& cause) {
  std::string out(membership::to_string(cause.kind));
  if (!cause.host.empty()) out += " on " + cause.host;
  if (!cause.text.empty()) out += ": " + cause.text;
  return out;
}

}  // namespace

void Jobs::connected(ConnectionId id, std::string job, std::string peer_address) {
  clients_.insert_or_assign(id, Client{std::move(job), std::move(peer_address), {}, false});
}

std::vector<std::string> Jobs::names() const {
  std::vector<std::string> out;
  out.reserve(jobs_.size());
  for (const auto& [name, job] : jobs_) out.push_back(name);
  return out;
}

std::vector<int> Jobs::orders_never_seen(std::string_view name) const {
  std::vector<int> out;
  const auto found = jobs_.find(name);
  for (int order = 0; found != jobs_.end() && order < found->second.settings.max_nodes; ++order)
    if (!found->second.orders_seen.contains(order)) out.push_back(order);
  return out;
}

const membership::Round* Jobs::find_round(std::string_view job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second.round;
}

void Jobs::refuse(ConnectionId id, Refused::Reason reason, std::string text, JobsEffects& effects) {
  // It is closed when the word of it can go out; until then it may say the same without end.
  if (const auto client = clients_.find(id);
      client != clients_.end() && std::exchange(client->second.refused, true))
    return;
  effects.deliveries.push_back({{id}, Refused{reason, std::move(text)}, true});
}

void Jobs::receive(ConnectionId id, const control::Message& message, Instant now, JobsEffects& effects) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  if (std::holds_alternative<control::Heartbeat>(message)) effects.heartbeats.push_back(id);
  if (client.refused) return;
  if (const auto* request = std::get_if<control::Join>(&message)) {
    if (client.node)
      refuse(id, Refused::Reason::kProtocol, "a second Join on one connection", effects);
    else
      join(id, client, *request, now, effects);
    return;
  }
  if (!client.node) {
    if (!std::holds_alternative<control::Heartbeat>(message) &&
        !std::holds_alternative<control::Leave>(message))
      refuse(id, Refused::Reason::kProtocol, fmt::format("{} before Join", control::name_of(message)),
             effects);
    return;
  }
  const auto job = jobs_.find(client.job);
  if (job == jobs_.end()) return;
  handle(job->second, id, client, message, now, effects);
}

void Jobs::handle(Job& job, ConnectionId id, Client& client, const control::Message& message, Instant now,
                  JobsEffects& effects) {
  const NodeId node = *client.node;
  const bool awaited = membership::heartbeat(job.round, node, now);
  if (std::holds_alternative<control::Heartbeat>(message)) {
    if (awaited) settle(job, now, effects);
    return;
  }
  job.changed = true;
  const auto entry = job.round.nodes.find(node);
  const std::string host = entry == job.round.nodes.end() ? std::string() : entry->second.request.host;
  if (const auto* is_ready = std::get_if<control::Ready>(&message)) {
    hear_ready(job, id, node, *is_ready, now, effects);
    return;
  } else if (const auto* failed = std::get_if<control::WorkerFailed>(&message)) {
    membership::Cause cause;
    cause.rank = failed->rank;
    cause.exit_code = failed->exit_code;
    cause.text = one_line(failed->text);
    (void)membership::worker_failed(job.round, node, failed->generation, cause, failed->may_restart,
                                    failed->machine_at_fault, job.settings, now, failed->reached);
  } else if (const auto* done = std::get_if<control::Finished>(&message)) {
    const bool again = entry != job.round.nodes.end() && entry->second.finished;
    if (membership::finished(job.round, node, done->generation, now) && !again && recorder_ != nullptr)
      recorder_->job_finished(job.name, node);
  } else if (const auto* point = std::get_if<control::SafePoint>(&message)) {
    (void)membership::safe_point(job.round, point->generation);
    settle(job, now, effects);
    const bool goes_on =
        job.round.phase == Phase::kRunning && job.round.world.generation == point->generation;
    if (goes_on) effects.deliveries.push_back({{id}, control::SafePointPassed{point->generation}, false});
    return;
  } else if (const auto* leave = std::get_if<control::Leave>(&message)) {
    effects.log.push_back(fmt::format("job {}: {} leaves: {}", job.name, host, one_line(leave->reason)));
    membership::left(job.round, node, one_line(leave->reason));
    detach(job, node);
    job.known.erase(node);
    client.node.reset();
  } else if (const auto* stop = std::get_if<control::Stop>(&message);
             stop != nullptr && stop->or_leave && membership::can_spare(job.round, job.settings, node, now)) {
    release(job, id, client, host, {stop->exit_code, one_line(stop->reason), true}, effects);
  } else if (stop != nullptr) {
    membership::stop(job.round, host, one_line(stop->reason), stop->exit_code);
  } else if (const auto* report = std::get_if<control::Report>(&message)) {
    pass_on(job, *report, host, entry == job.round.nodes.end() ? -1 : entry->second.group_rank, effects);
    return;
  } else if (const auto* word = std::get_if<control::Hang>(&message)) {
    pass_on(job, *word, host, entry == job.round.nodes.end() ? -1 : entry->second.group_rank, effects);
    return;
  } else {
    refuse(id, Refused::Reason::kProtocol,
           fmt::format("an agent does not send {}", control::name_of(message)), effects);
    return;
  }
  settle(job, now, effects);
}

void Jobs::disconnected(ConnectionId id, std::string_view error, Instant now, JobsEffects& effects,
                        membership::Break how) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  const Client client = std::move(found->second);
  clients_.erase(found);
  const auto entry = jobs_.find(client.job);
  if (entry == jobs_.end() || !client.node) return;
  Job& job = entry->second;
  const auto node = job.round.nodes.find(*client.node);
  const std::string host = node == job.round.nodes.end() ? std::string() : node->second.request.host;
  job.lost_some |= job.round.phase != Phase::kClosed;
  membership::disconnected(job.round, job.settings, *client.node, error, now, how);
  if (!host.empty() && job.round.phase != Phase::kClosed)
    effects.log.push_back(
        fmt::format("job {}: {} {}: {}", job.name,
                    job.round.nodes.contains(*client.node) ? "awaits the return of" : "lost", host, error));
  // It may have come back by another connection meanwhile.
  if (const auto at = job.connections.find(*client.node); at != job.connections.end() && at->second == id)
    detach(job, *client.node);
  if (job.round.phase == Phase::kClosed) expect_no_report(job, *client.node, effects);
  job.changed = true;
  settle(job, now, effects);
}

void Jobs::note_trouble(std::string_view name, membership::Trouble trouble, Instant now,
                        JobsEffects& effects) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end() || found->second.round.phase != Phase::kGathering) return;
  membership::note_trouble(found->second.round, std::move(trouble));
  found->second.changed = true;
  settle(found->second, now, effects);
}

void Jobs::settle(Job& job, Instant now, JobsEffects& effects) {
  bool has_changed = false;
  while (true) {
    const membership::Outcome outcome = membership::decide(job.round, job.settings, now);
    if (std::holds_alternative<membership::Idle>(outcome)) break;
    job.changed = true;
    if (job.round.phase != Phase::kRunning) effects.over.push_back(job.name);
    // Who waits for a world is not kept: they come again.
    has_changed |= !std::holds_alternative<membership::NodesLost>(outcome);
    if (std::holds_alternative<membership::Formed>(outcome)) tell_world(job, effects);
    if (const auto* over = std::get_if<membership::GenerationOver>(&outcome)) {
      effects.log.push_back(fmt::format("job {}: generation {} is over ({}); {} of {} restarts used",
                                        job.name, over->generation, cause_text(over->cause),
                                        job.round.restarts_used, job.settings.max_restarts));
      std::vector<ConnectionId> to;
      for (const membership::Slot& slot : job.round.world.slots)
        if (const auto at = job.connections.find(slot.node); at != job.connections.end())
          to.push_back(at->second);
      effects.deliveries.push_back(
          {std::move(to), control::GenerationOver{over->generation, job.round.restarts_used, over->cause},
           false});
      job.told = {};
      job.told_at = now;  // a restart without trouble needs no explanation
    }
    if (const auto* lost = std::get_if<membership::NodesLost>(&outcome)) {
      job.lost_some |= job.round.phase != Phase::kClosed;
      for (const auto& [node, text] : lost->nodes) {
        expect_no_report(job, node, effects);
        effects.log.push_back(
            fmt::format("job {}: lost node {}: {}", job.name, membership::to_text(node), text));
        const auto at = job.connections.find(node);
        if (at == job.connections.end()) continue;
        clients_.at(at->second).node.reset();
        refuse(at->second, Refused::Reason::kLost, text, effects);
        detach(job, node);
      }
    }
    if (std::holds_alternative<membership::Closed>(outcome)) {
      effects.log.push_back(fmt::format("job {}: over, {}", job.name, cause_text(job.round.ending)));
      ended_.note(job.name, now, job.round.ending);
      if (job.round.ending.kind == membership::Cause::Kind::kSucceeded) turn_away_surplus(job, effects);
      effects.deliveries.push_back({everybody(job), control::Closed{job.round.ending}, false});
    }
  }
  if (has_changed) keep(job, now, effects);
  tell_reason(job, now, effects);
  schedule(job, now);
}

// Nobody is here, and nobody is expected back within the members' grace.
bool Jobs::is_deserted(const Job& job) {
  return job.connections.empty() && (job.round.phase == Phase::kClosed ||
                                     std::all_of(job.round.nodes.begin(), job.round.nodes.end(),
                                                 [](const auto& entry) { return entry.second.connected; }));
}

void Jobs::schedule(Job& job, Instant now) {
  if (is_deserted(job) && job.forget_at == Instant::max())
    job.forget_at = now + (job.lost_some ? std::max(options_.keep, options_.return_grace) : options_.keep);
  Instant next = std::min(job.forget_at, membership::next_deadline(job.round));
  if (job.round.phase == Phase::kGathering && job.changed)
    next = std::min(next, job.told_at + options_.explain_interval);
  if (next == job.deadline) return;
  deadlines_.erase({job.deadline, job.name});
  job.deadline = next;
  if (next != Instant::max()) deadlines_.emplace(next, job.name);
}

void Jobs::advance(Instant now, JobsEffects& effects) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const std::string name = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    Job& job = jobs_.find(name)->second;
    job.deadline = Instant::max();
    if (job.forget_at <= now) {
      effects.log.push_back(fmt::format("job {}: forgotten", name));
      effects.over.push_back(name);
      forget(job);
      jobs_.erase(jobs_.find(name));
      continue;
    }
    job.changed = true;  // a cool-down may be over
    settle(job, now, effects);
  }
}

Instant Jobs::next_deadline() const {
  return deadlines_.empty() ? Instant::max() : deadlines_.begin()->first;
}

}  // namespace muster
