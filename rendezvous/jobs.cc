// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/jobs.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace muster {

using control::Refused;
using membership::NodeId;
using membership::Phase;

namespace {

constexpr std::size_t kMaxNameBytes = 255;
constexpr std::size_t kMaxTextBytes = 4096;

// One line without what a terminal would obey.
std::string clean(std::string_view text, std::size_t max_bytes = kMaxTextBytes) {
  std::string out(text.substr(0, max_bytes));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return out;
}

std::string cause_text(const membership::Cause& cause) {
  std::string out(membership::to_string(cause.kind));
  if (!cause.host.empty()) out += " on " + cause.host;
  if (!cause.text.empty()) out += ": " + cause.text;
  return out;
}

std::size_t size_of(const membership::Request& request) {
  std::size_t out = request.host.size() + request.machine.size() + request.role.size() + request.unfit.size();
  for (const std::string& address : request.addresses) out += address.size();
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

void Jobs::join(ConnectionId id, Client& client, const control::Join& join, Instant now,
                JobsEffects& effects) {
  if (std::string text = membership::defect(join.settings); !text.empty())
    return refuse(id, Refused::Reason::kSettings, std::move(text), effects);
  if (const std::size_t size = size_of(join.request); size > options_.max_node_bytes)
    return refuse(id, Refused::Reason::kLimit,
                  fmt::format("the agent describes itself in {} bytes, the limit is {} (--max-node-bytes)",
                              size, options_.max_node_bytes),
                  effects);
  auto found = jobs_.find(client.job);
  if (found != jobs_.end() && found->second.round.phase == Phase::kClosed &&
      (found->second.known.contains(join.request.id) ||
       (join.resume && *join.resume == found->second.round.world.generation))) {
    // It was away when its job ended.
    client.node = join.request.id;
    const auto [place, is_new] = found->second.connections.try_emplace(join.request.id, id);
    // A former connection, that has not ended yet, speaks for nobody any more.
    if (const auto former = is_new ? clients_.end() : clients_.find(std::exchange(place->second, id));
        former != clients_.end() && former->first != id)
      former->second.node.reset();
    found->second.awaited.erase(join.request.id);
    found->second.forget_at = Instant::max();
    effects.deliveries.push_back({{id}, control::Closed{found->second.round.ending}, false});
    return settle(found->second, now, effects);
  }
  std::int64_t last_generation = -1;
  bool was_recorded = false;
  if (found != jobs_.end() && is_deserted(found->second) && !is_awaited(found->second, now) &&
      (found->second.round.phase == Phase::kClosed ||
       (!join.resume && (!found->second.lost_some ||
                         !membership::difference(join.settings, found->second.settings).empty())))) {
    // Everybody has left the former job of this name: this is a new one. Its generations go on, so that no
    // number is used twice while the former one is kept.
    last_generation = found->second.round.world.generation;
    was_recorded = found->second.recorded;
    deadlines_.erase({found->second.deadline, client.job});
    jobs_.erase(found);
    found = jobs_.end();
  }
  if (found == jobs_.end()) {
    if (!options_.only_job.empty() && client.job != options_.only_job)
      return refuse(id, Refused::Reason::kSettings,
                    fmt::format("this coordinator serves job {} alone, not {}; give one of them another port "
                                "with --rdzv-endpoint",
                                options_.only_job, client.job),
                    effects);
    if (jobs_.size() >= options_.max_jobs)
      return refuse(id, Refused::Reason::kLimit,
                    fmt::format("this coordinator has {} jobs, the limit (--max-jobs)", jobs_.size()),
                    effects);
    Job fresh;
    fresh.name = client.job;
    fresh.settings = join.settings;
    fresh.round.world.generation = last_generation;
    found = jobs_.emplace(client.job, std::move(fresh)).first;
    // The former record gives way to one that remembers its generations.
    if (was_recorded) keep(found->second, now);
    effects.log.push_back(
        fmt::format("job {}: new, --nnodes={}", client.job, membership::nodes_text(join.settings)));
  }
  Job& job = found->second;
  // Members whose connection is gone for a while are kept too. One that comes back is none more.
  if (job.round.nodes.size() >= options_.max_nodes_per_job && !job.round.nodes.contains(join.request.id))
    return refuse(
        id, Refused::Reason::kLimit,
        fmt::format("job {} has {} nodes, the limit (--max-nodes-per-job)", job.name, job.round.nodes.size()),
        effects);

  if (std::string text = disagreement_about_store(job, join.request); !text.empty())
    return refuse(id, Refused::Reason::kSettings, clean(text), effects);

  membership::Request request = join.request;
  // It appears on other people's terminals.
  request.host = clean(request.host, kMaxNameBytes);
  request.unfit = clean(request.unfit);
  request.addresses = reachable_addresses(request.addresses, client.address);
  const NodeId node = request.id;
  const membership::Admission admission =
      membership::join(job.round, job.settings, request, join.settings, join.resume, now);
  job.changed = true;
  using Kind = membership::Admission::Kind;
  if (admission.kind == Kind::kRefused) {
    effects.log.push_back(fmt::format("job {}: refused {}: {}", job.name, request.host, admission.text));
    refuse(id, job.round.phase == Phase::kClosed ? Refused::Reason::kOver : Refused::Reason::kSettings,
           fmt::format("{} {}{}", request.host, admission.text,
                       is_awaited(job, now) ? "; its agents may come back to hear of it yet" : ""),
           effects);
    settle(job, now, effects);
    return;
  }
  if (const auto former = job.connections.find(node); former != job.connections.end()) {
    clients_.at(former->second).node.reset();
    refuse(former->second, Refused::Reason::kLost, "the agent has connected anew", effects);
  }
  client.node = node;
  job.connections[node] = id;
  if (job.known.size() >= options_.max_nodes_per_job) job.known.clear();  // of the long lost none comes back
  job.known.insert(node);
  if (job.round.phase == Phase::kGathering) job.newcomers.push_back(id);
  job.forget_at = Instant::max();
  if (!is_fit(request))
    effects.log.push_back(fmt::format("job {}: {} is unfit: {}", job.name, request.host, request.unfit));
  if (admission.kind == Kind::kStale) {
    membership::Cause cause;
    cause.kind = membership::Cause::Kind::kStale;
    cause.text = admission.text;
    effects.deliveries.push_back(
        {{id}, control::GenerationOver{*join.resume, job.round.restarts_used, std::move(cause)}, false});
  }
  if (admission.kind == Kind::kResumed || admission.kind == Kind::kUntold)
    effects.log.push_back(fmt::format("job {}: {} is back, generation {} goes on", job.name, request.host,
                                      job.round.world.generation));
  if (admission.kind == Kind::kUntold)
    tell_member(job, static_cast<std::size_t>(job.round.nodes.at(node).group_rank), effects);
  settle(job, now, effects);
  // Those who come while a world runs are told at once; a gathering is explained to all when the time comes.
  if (job.round.phase == Phase::kRunning) {
    const auto entry = job.round.nodes.find(node);
    if (entry != job.round.nodes.end() && entry->second.group_rank < 0) tell_outsider(job, node, id, effects);
  }
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
    (void)membership::ready(job.round, node, is_ready->generation, is_ready->master_port, now,
                            is_ready->reached);
  } else if (const auto* failed = std::get_if<control::WorkerFailed>(&message)) {
    membership::Cause cause;
    cause.rank = failed->rank;
    cause.exit_code = failed->exit_code;
    cause.text = clean(failed->text);
    (void)membership::worker_failed(job.round, node, failed->generation, cause, failed->may_restart,
                                    failed->machine_at_fault, job.settings, now, failed->reached);
  } else if (const auto* done = std::get_if<control::Finished>(&message)) {
    if (membership::finished(job.round, node, done->generation, now) && recorder_ != nullptr)
      recorder_->job_finished(job.name, node);
  } else if (const auto* point = std::get_if<control::SafePoint>(&message)) {
    (void)membership::safe_point(job.round, point->generation);
    settle(job, now, effects);
    const bool goes_on =
        job.round.phase == Phase::kRunning && job.round.world.generation == point->generation;
    if (goes_on) effects.deliveries.push_back({{id}, control::SafePointPassed{point->generation}, false});
    return;
  } else if (const auto* leave = std::get_if<control::Leave>(&message)) {
    effects.log.push_back(fmt::format("job {}: {} leaves: {}", job.name, host, clean(leave->reason)));
    membership::left(job.round, node, clean(leave->reason));
    detach(job, node);
    job.known.erase(node);
    client.node.reset();
  } else if (const auto* stop = std::get_if<control::Stop>(&message);
             stop != nullptr && stop->or_leave && membership::can_spare(job.round, job.settings, node, now)) {
    release(job, id, client, host, {stop->exit_code, clean(stop->reason), true}, effects);
  } else if (stop != nullptr) {
    membership::stop(job.round, host, clean(stop->reason), stop->exit_code);
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
      if (job.round.ending.kind == membership::Cause::Kind::kSucceeded) turn_away_surplus(job, effects);
      effects.deliveries.push_back({everybody(job), control::Closed{job.round.ending}, false});
    }
  }
  if (has_changed) keep(job, now);
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

void Jobs::keep(Job& job, Instant now) {
  if (recorder_ == nullptr) return;
  recorder_->job(job.name, record_of(job, now));
  job.recorded = true;
}

Instant Jobs::next_deadline() const {
  return deadlines_.empty() ? Instant::max() : deadlines_.begin()->first;
}

}  // namespace muster
