// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/jobs.h"

#include <chrono>
#include <iterator>

#include <fmt/format.h>

#include "rendezvous/base/text.h"

namespace muster {

using control::Refused;
using membership::NodeId;
using membership::Phase;

namespace {

constexpr std::size_t kMaxNameBytes = 255;

std::size_t size_of(const membership::Request& request) {
  std::size_t out = request.host.size() + request.machine.size() + request.role.size() +
                    request.unhealthy.size() + request.program.size() + request.status_address.size();
  for (const std::string& address : request.addresses) out += address.size();
  return out;
}

// Nobody is here, and nobody is expected back within the members' grace.
bool is_deserted(const Job& job) {
  return job.connections.empty() &&
         (job.round.phase == Phase::kClosed ||
          std::ranges::all_of(job.round.nodes, [](const auto& entry) { return entry.second.connected; }));
}

// Whoever was here when the coordinator stopped is here yet as far as anybody knows: the job is no other's to
// begin anew.
bool is_awaited(const Job& job, Instant now) {
  return job.round.phase == membership::Phase::kClosed && !job.awaited.empty() && now < job.awaited_until;
}

// Everybody has left the former job of this name: this is a new one.
bool is_replaceable(const Job& job, const control::Join& join, Instant now) {
  if (!is_deserted(job) || is_awaited(job, now)) return false;
  if (job.round.phase == Phase::kClosed) return true;
  return !join.resume && (!job.lost_some || !membership::difference(join.settings, job.settings).empty());
}

// Nodes of a role run the same program, wherever it lies and with whatever arguments: those name a node's
// own rank, address, disk or share of the data, and may hold what is nobody else's business. Roles may
// differ in theirs.
std::string disagreement_about_program(const Job& job, const membership::Request& request) {
  const Job::Program* first = find_in(job.programs, request.role);
  if (request.program.empty() || first == nullptr || first->name == request.program) return {};
  return fmt::format("runs {}, and {} runs {}", request.program, first->host, first->name);
}

// Half of the workers would wait in another store than the rest.
std::string disagreement_about_store(const Job& job, const membership::Request& request) {
  // Of a member that a restarted coordinator knows from its log alone, the port is not known.
  const auto& nodes = job.round.nodes;
  const auto found = std::ranges::find_if(nodes, [&](const auto& entry) {
    return entry.second.connected && entry.first != request.id && is_healthy(entry.second.request);
  });
  const bool proxies = request.master_port == 0;
  if (!is_healthy(request) || found == nodes.end() || proxies == (found->second.request.master_port == 0))
    return {};
  const membership::Node& other = found->second;
  return fmt::format(
      "{} {} its workers' store (--store-proxy, the default with a secret), {} {}; use the same options on "
      "all nodes",
      request.host, proxies ? "proxies" : "does not proxy", other.request.host,
      proxies ? "does not" : "does");
}

// Once it is admitted.
void note_program(Job& job, ConnectionId id, const membership::Request& request, JobsEffects& effects) {
  if (const std::string text = disagreement_about_program(job, request);
      !text.empty() && !std::exchange(job.programs_differ, true)) {
    effects.log.push_back(fmt::format("job {}: {} {}", job.name, request.host, text));
    std::string notice =
        fmt::format("{} {} in the same job, {}; if that is not meant, another job needs another --rdzv-id",
                    request.host, text, job.name);
    effects.deliveries.push_back({{id}, control::Notice{std::move(notice)}});
  }
  if (!request.program.empty() && job.programs.size() < Job::kMaxRoles)
    job.programs.try_emplace(request.role, Job::Program{request.program, request.host});
}

}  // namespace

void Jobs::connected(ConnectionId id, std::string job, std::string peer_address) {
  clients_.insert_or_assign(id, Client{std::move(job), std::move(peer_address), {}});
}

std::vector<int> Jobs::orders_never_seen(std::string_view name) const {
  std::vector<int> out;
  const Job* job = find_in(jobs_, name);
  for (int order = 0; job != nullptr && order < job->settings.max_nodes; ++order)
    if (!job->orders_seen.contains(order)) out.push_back(order);
  return out;
}

const membership::Round* Jobs::find_round(std::string_view name) const {
  const Job* job = find_in(jobs_, name);
  return job == nullptr ? nullptr : &job->round;
}

void Jobs::refuse(ConnectionId id, Refused::Reason reason, std::string text) {
  // It is closed when the word of it can go out; until then it may say the same without end.
  if (Client* client = find_in(clients_, id); client != nullptr && std::exchange(client->refused, true))
    return;
  effects_.deliveries.push_back({{id}, Refused{reason, std::move(text)}, true});
}

void Jobs::receive(ConnectionId id, const control::Message& message, Instant now) {
  Client* const found = find_in(clients_, id);
  if (found == nullptr) return;
  Client& client = *found;
  if (std::holds_alternative<control::Heartbeat>(message)) effects_.heartbeats.push_back(id);
  if (client.refused) return;
  if (const auto* request = std::get_if<control::Join>(&message)) {
    if (client.node)
      refuse(id, Refused::Reason::kProtocol, "a second Join on one connection");
    else
      join(id, client, *request, now);
    return;
  }
  if (!client.node) {
    if (!std::holds_alternative<control::Heartbeat>(message) &&
        !std::holds_alternative<control::Leave>(message))
      refuse(id, Refused::Reason::kProtocol, fmt::format("{} before Join", control::name_of(message)));
    return;
  }
  if (Job* job = find_in(jobs_, client.job)) handle(*job, id, client, message, now);
}

void Jobs::handle(Job& job, ConnectionId id, Client& client, const control::Message& message, Instant now) {
  const NodeId node = *client.node;
  const bool awaited = membership::heartbeat(job.round, node, now);
  if (std::holds_alternative<control::Heartbeat>(message)) {
    if (awaited) run_decisions(job, now);
    return;
  }
  job.changed = true;
  const membership::Node* entry = find_in(job.round.nodes, node);
  const std::string host = entry == nullptr ? std::string() : entry->request.host;
  if (const auto* is_ready = std::get_if<control::Ready>(&message)) {
    on_ready(job, node, *is_ready, now);
    return;
  } else if (const auto* failed = std::get_if<control::WorkerFailed>(&message)) {
    const membership::Cause cause{
        .rank = failed->rank, .exit_code = failed->exit_code, .text = one_line(failed->text)};
    (void)membership::worker_failed(job.round, node, failed->generation, cause, failed->may_restart,
                                    failed->machine_at_fault, job.settings, now, failed->reached);
  } else if (const auto* done = std::get_if<control::Finished>(&message)) {
    const bool again = entry != nullptr && entry->finished;
    if (membership::finished(job.round, node, done->generation, now) && !again && record_)
      record_(MemberFinished{job.name, node});
  } else if (const auto* point = std::get_if<control::SafePoint>(&message)) {
    (void)membership::safe_point(job.round, point->generation);
    run_decisions(job, now);
    const bool goes_on =
        job.round.phase == Phase::kRunning && job.round.world.generation == point->generation;
    if (goes_on) effects_.deliveries.push_back({{id}, control::SafePointPassed{point->generation}});
    return;
  } else if (const auto* leave = std::get_if<control::Leave>(&message)) {
    take_leave(job, client, host, one_line(leave->reason));
  } else if (const auto* stop = std::get_if<control::Stop>(&message);
             stop != nullptr && stop->or_leave && membership::can_spare(job.round, job.settings, node, now)) {
    // Others take its place: for it alone the job is over.
    take_leave(job, client, host, one_line(stop->reason));
    membership::Cause cause{.kind = membership::Cause::Kind::kStopped,
                            .host = host,
                            .exit_code = stop->exit_code,
                            .text = one_line(stop->reason)};
    effects_.deliveries.push_back({{id}, control::Closed{std::move(cause)}});
  } else if (stop != nullptr) {
    membership::stop(job.round, host, one_line(stop->reason), stop->exit_code);
  } else if (forward(job, node, message, effects_)) {
    return;
  } else {
    refuse(id, Refused::Reason::kProtocol,
           fmt::format("an agent does not send {}", control::name_of(message)));
    return;
  }
  run_decisions(job, now);
}

void Jobs::disconnected(ConnectionId id, std::string_view error, Instant now, membership::Break how) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  const Client client = std::move(found->second);
  clients_.erase(found);
  Job* const its_job = find_in(jobs_, client.job);
  if (its_job == nullptr || !client.node) return;
  Job& job = *its_job;
  const membership::Node* node = find_in(job.round.nodes, *client.node);
  const std::string host = node == nullptr ? std::string() : node->request.host;
  job.lost_some |= job.round.phase != Phase::kClosed;
  membership::disconnected(job.round, job.settings, *client.node, error, now, how);
  if (!host.empty() && job.round.phase != Phase::kClosed)
    effects_.log.push_back(
        fmt::format("job {}: {} {}: {}", job.name,
                    job.round.nodes.contains(*client.node) ? "awaits the return of" : "lost", host, error));
  // It may have come back by another connection meanwhile.
  if (const ConnectionId* at = find_in(job.connections, *client.node); at != nullptr && *at == id)
    detach(job, *client.node);
  if (job.round.phase == Phase::kClosed) notify_no_report(job, *client.node, effects_);
  job.changed = true;
  run_decisions(job, now);
}

void Jobs::note_join_failure(std::string_view name, membership::JoinFailure failure, Instant now) {
  Job* const job = find_in(jobs_, name);
  if (job == nullptr || job->round.phase != Phase::kGathering) return;
  membership::note_join_failure(job->round, std::move(failure));
  job->changed = true;
  run_decisions(*job, now);
}

void Jobs::run_decisions(Job& job, Instant now) {
  bool has_changed = false;
  while (true) {
    const membership::Outcome outcome = membership::decide(job.round, job.settings, now);
    if (std::holds_alternative<membership::Idle>(outcome)) break;
    job.changed = true;
    if (job.round.phase != Phase::kRunning) effects_.over.push_back(job.name);
    // Who waits for a world is not kept: they come again.
    has_changed |= !std::holds_alternative<membership::NodesLost>(outcome);
    if (std::holds_alternative<membership::Formed>(outcome)) {
      job.newcomers.clear();
      notify_world(job, effects_);
    }
    if (const auto* over = std::get_if<membership::GenerationOver>(&outcome)) {
      effects_.log.push_back(fmt::format("job {}: generation {} is over ({}); {} of {} restarts used",
                                         job.name, over->generation, cause_text(over->cause),
                                         job.round.restarts_used, job.settings.max_restarts));
      effects_.deliveries.push_back(
          {connections_of(job, 0, job.round.world.slots.size()),
           control::GenerationOver{over->generation, job.round.restarts_used, over->cause}});
      job.told = {};
      job.told_at = now;  // a restart without trouble needs no explanation
    }
    if (const auto* lost = std::get_if<membership::NodesLost>(&outcome)) {
      job.lost_some |= job.round.phase != Phase::kClosed;
      for (const auto& [node, text] : lost->nodes) {
        notify_no_report(job, node, effects_);
        effects_.log.push_back(
            fmt::format("job {}: lost node {}: {}", job.name, membership::to_text(node), text));
        turn_away(job, node, Refused::Reason::kLost, text);
      }
    }
    if (std::holds_alternative<membership::Closed>(outcome)) {
      effects_.log.push_back(fmt::format("job {}: over, {}", job.name, cause_text(job.round.ending)));
      ended_.note(job.name, now, job.round.ending);
      if (job.round.ending.kind == membership::Cause::Kind::kSucceeded) turn_away_surplus(job);
      effects_.deliveries.push_back({everybody(job), control::Closed{job.round.ending}});
    }
  }
  if (has_changed) keep(job, now);
  send_reason(job, now);
  schedule(job, now);
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

void Jobs::advance(Instant now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const std::string name = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    Job& job = *find_in(jobs_, name);
    job.deadline = Instant::max();
    if (job.forget_at <= now) {
      effects_.log.push_back(fmt::format("job {}: forgotten", name));
      effects_.over.push_back(name);
      if (record_ && job.recorded) record_(JobForgotten{name});
      jobs_.erase(jobs_.find(name));
      continue;
    }
    job.changed = true;  // a cool-down may be over
    run_decisions(job, now);
  }
}

Instant Jobs::next_deadline() const {
  return deadlines_.empty() ? Instant::max() : deadlines_.begin()->first;
}

// A Join: whose job it is, whether that is over, and whether the agent may take part.

void Jobs::join(ConnectionId id, Client& client, const control::Join& join, Instant now) {
  if (std::string text = membership::defect(join.settings); !text.empty())
    return refuse(id, Refused::Reason::kSettings, std::move(text));
  if (const std::size_t size = size_of(join.request); size > options_.max_node_bytes)
    return refuse(id, Refused::Reason::kLimit,
                  fmt::format("the agent describes itself in {} bytes, the limit is {}", size,
                              options_.max_node_bytes));
  Job* const there = find_in(jobs_, client.job);
  // Whoever comes to a coordinator's only job was awaited when that ended before its first generation.
  if (there != nullptr && there->round.phase == Phase::kClosed &&
      (there->known.contains(join.request.id) ||
       (join.resume && *join.resume == there->round.world.generation) ||
       (!options_.outlives_jobs && there->round.world.slots.empty())))
    return send_end(*there, id, client, join, now);
  if (came_too_late(id, client, join, now)) return;
  Job* const job = job_for(id, client, join, now);
  if (job == nullptr) return;
  // Members whose connection is gone for a while are kept too. One that comes back is none more.
  if (job->round.nodes.size() >= options_.max_nodes_per_job && !job->round.nodes.contains(join.request.id))
    return refuse(id, Refused::Reason::kLimit,
                  fmt::format("job {} has {} nodes, the limit", job->name, job->round.nodes.size()));
  membership::Request request = join.request;
  // It appears on other people's terminals.
  request.host = one_line(request.host, kMaxNameBytes);
  request.unhealthy = one_line(request.unhealthy);
  request.program = one_line(request.program, kMaxNameBytes);
  request.addresses = reachable_addresses(request.addresses, client.address);
  request.status_address =
      reachable_status_address(one_line(request.status_address, kMaxNameBytes), request.addresses);
  if (std::string text = disagreement_about_store(*job, request); !text.empty())
    return refuse(id, Refused::Reason::kSettings, one_line(text));
  if (const std::string text = disagreement_about_program(*job, request);
      !text.empty() && job->name == control::kDefaultJob) {
    effects_.log.push_back(fmt::format("job {}: refused {}: {}", job->name, request.host, text));
    refuse(id, Refused::Reason::kSettings,
           fmt::format("{} {}: two jobs have met under the run id \"{}\", which every job has that was given "
                       "none; give each its own --rdzv-id, the same on all of its nodes",
                       request.host, text, job->name));
    return note_join_failure(job->name, {request.host, "settings", text, {}}, now);
  }
  add_node(*job, id, client, std::move(request), join, now);
}

// It was away when its job ended.
void Jobs::send_end(Job& job, ConnectionId id, Client& client, const control::Join& join, Instant now) {
  client.node = join.request.id;
  if (join.request.order) job.orders_seen.insert(*join.request.order);
  const auto [place, is_new] = job.connections.try_emplace(join.request.id, id);
  // A former connection, that has not ended yet, speaks for nobody any more.
  if (const auto former = is_new ? clients_.end() : clients_.find(std::exchange(place->second, id));
      former != clients_.end() && former->first != id)
    former->second.node.reset();
  job.awaited.erase(join.request.id);
  job.forget_at = Instant::max();
  effects_.deliveries.push_back({{id}, control::Closed{job.round.ending}});
  run_decisions(job, now);
}

// The agent was running when the last job of this name ended, and is none of those who take part in the next:
// it would wait for nodes that are done.
bool Jobs::came_too_late(ConnectionId id, Client& client, const control::Join& join, Instant now) {
  const EndedJobs::Entry* ended = ended_.outlived_by(client.job, join.age, now);
  if (ended == nullptr) return false;
  if (const Job* job = find_in(jobs_, client.job);
      job != nullptr && job->round.phase != Phase::kClosed &&
      (job->known.contains(join.request.id) || job->round.nodes.contains(join.request.id)))
    return false;
  if (join.resume) {
    client.refused = true;  // nothing that it says counts any more
    effects_.deliveries.push_back({{id}, control::Closed{ended->ending}});
    return true;
  }
  const double ago = seconds_between(ended->at, now);
  refuse(id, Refused::Reason::kOver,
         fmt::format("{}: the job is over: {}, {:.1f} s ago, when this agent had been started already; "
                     "nothing was run here. Start it again for a new job of this name, or give a job of its "
                     "own another --rdzv-id",
                     one_line(join.request.host, kMaxNameBytes), membership::to_string(ended->ending.kind),
                     ago));
  return true;
}

Job* Jobs::job_for(ConnectionId id, const Client& client, const control::Join& join, Instant now) {
  Job* const found = find_in(jobs_, client.job);
  if (found == nullptr || is_replaceable(*found, join, now)) return begin(id, client, join, now);
  Job& job = *found;
  if (job.round.phase != Phase::kClosed) return &job;
  if (!options_.outlives_jobs) {
    refuse(id, Refused::Reason::kOver,
           fmt::format("{}: the job is over: {}, and this coordinator ends with it",
                       one_line(join.request.host, kMaxNameBytes),
                       membership::to_string(job.round.ending.kind)));
    return nullptr;
  }
  // A new job's agent, which has not long to wait.
  refuse(id, Refused::Reason::kBusy,
         fmt::format("the former job of this name is over ({}), and {}; a new one begins when they have gone",
                     membership::to_string(job.round.ending.kind),
                     is_awaited(job, now)
                         ? "its agents may come back to hear of it yet"
                         : fmt::format("{} of its agents have not gone yet", job.connections.size())));
  return nullptr;
}

// In place of the former job of this name, if there is one. Generations go on, so that no number is used
// twice while that is kept.
Job* Jobs::begin(ConnectionId id, const Client& client, const control::Join& join, Instant now) {
  std::int64_t last_generation = -1;
  bool was_recorded = false;
  std::vector<membership::JoinFailure> join_failures;  // under the same rules they are failures still
  if (const auto former = jobs_.find(client.job); former != jobs_.end()) {
    if (options_.rules) join_failures = std::move(former->second.round.join_failures);
    last_generation = former->second.round.world.generation;
    was_recorded = former->second.recorded;
    deadlines_.erase({former->second.deadline, client.job});
    jobs_.erase(former);
  }
  if (!options_.only_job.empty() && client.job != options_.only_job) {
    refuse(id, Refused::Reason::kSettings,
           fmt::format("this coordinator serves job {} alone, not {}; give one of them another port "
                       "with --rdzv-endpoint",
                       options_.only_job, client.job));
    return nullptr;
  }
  if (jobs_.size() >= options_.max_jobs) {
    refuse(id, Refused::Reason::kLimit,
           fmt::format("this coordinator has {} jobs, the limit (--max-jobs)", jobs_.size()));
    return nullptr;
  }
  Job fresh;
  fresh.name = client.job;
  fresh.settings = options_.rules.value_or(join.settings);
  fresh.since = now;
  fresh.round.world.generation = last_generation;
  fresh.round.join_failures = std::move(join_failures);
  Job& job = jobs_.emplace(client.job, std::move(fresh)).first->second;
  // The former record gives way to one that remembers its generations.
  if (was_recorded) keep(job, now);
  effects_.log.push_back(
      fmt::format("job {}: new, --nnodes={}", client.job, membership::nodes_text(join.settings)));
  return &job;
}

void Jobs::add_node(Job& job, ConnectionId id, Client& client, membership::Request request,
                    const control::Join& join, Instant now) {
  const NodeId node = request.id;
  const membership::Admission admission =
      membership::join(job.round, job.settings, request, join.settings, join.resume, now);
  job.changed = true;
  using Kind = membership::Admission::Kind;
  if (admission.kind == Kind::kRefused) {
    effects_.log.push_back(fmt::format("job {}: refused {}: {}", job.name, request.host, admission.text));
    refuse(id, Refused::Reason::kSettings, fmt::format("{} {}", request.host, admission.text));
    run_decisions(job, now);
    return;
  }
  if (const ConnectionId* former = find_in(job.connections, node)) {
    clients_.at(*former).node.reset();
    refuse(*former, Refused::Reason::kLost, "the agent has reconnected");
  }
  client.node = node;
  if (request.order) job.orders_seen.insert(*request.order);
  job.connections[node] = id;
  // Of the long lost none comes back.
  if (job.known.size() >= options_.max_nodes_per_job)
    std::erase_if(job.known, [&](const NodeId& known) { return !job.round.nodes.contains(known); });
  job.known.insert(node);
  if (job.round.phase == Phase::kGathering) job.newcomers.push_back(id);
  job.forget_at = Instant::max();
  if (!is_healthy(request))
    effects_.log.push_back(
        fmt::format("job {}: {} is unhealthy: {}", job.name, request.host, request.unhealthy));
  note_program(job, id, request, effects_);
  if (admission.kind == Kind::kStale) {
    effects_.deliveries.push_back(
        {{id},
         control::GenerationOver{*join.resume,
                                 job.round.restarts_used,
                                 {.kind = membership::Cause::Kind::kStale, .text = admission.text}}});
  }
  if (admission.kind == Kind::kResumed || admission.kind == Kind::kUntold)
    effects_.log.push_back(fmt::format("job {}: {} is back, generation {} goes on", job.name, request.host,
                                       job.round.world.generation));
  if (admission.kind == Kind::kUntold)
    notify_member(job, static_cast<std::size_t>(job.round.nodes.at(node).group_rank), effects_);
  run_decisions(job, now);
  // Those who come while a world runs are told at once; a gathering is explained to all when the time comes.
  // Who was away meanwhile is told when it is ready.
  if (admission.kind == Kind::kAdmitted) notify_outsider(job, node, effects_);
}

// What of the jobs outlives a coordinator or its stalls.

void Jobs::keep(Job& job, Instant now) {
  if (!record_) return;
  record_(JobRecorded{job.name, record_of(job, now)});
  job.recorded = true;
}

JobRecord Jobs::record_of(const Job& job, Instant now) const {
  JobRecord out = make_record(job.settings, job.round, now);
  auto known = job.known;
  for (const membership::Slot& slot : job.round.world.slots) known.erase(slot.node);
  out.known.assign(known.begin(), known.end());
  if (out.known.size() > kMaxKnown) {
    // Who is here comes before who was lost.
    std::partition(out.known.begin(), out.known.end(),
                   [&](const membership::NodeId& node) { return job.connections.contains(node); });
    out.known.resize(kMaxKnown);
  }
  std::ranges::sort(out.known);
  if (job.round.phase != membership::Phase::kClosed) return out;
  const auto note = [&](const membership::NodeId& node) {
    if (!job.connections.contains(node) && !job.awaited.contains(node)) out.gone.push_back(node);
  };
  for (const membership::Slot& slot : job.round.world.slots) note(slot.node);
  for (const membership::NodeId& node : out.known) note(node);
  return out;
}

void Jobs::describe(const JobSink& to, Instant now) const {
  for (const auto& [name, job] : jobs_)
    if (job.recorded) to(JobRecorded{name, record_of(job, now)});
}

void Jobs::detach(Job& job, const membership::NodeId& node) {
  if (job.connections.erase(node) > 0 && job.round.phase == membership::Phase::kClosed && job.recorded &&
      record_)
    record_(NodeGone{job.name, node});
}

void Jobs::turn_away(Job& job, const membership::NodeId& node, Refused::Reason reason,
                     const std::string& text) {
  const ConnectionId* at = find_in(job.connections, node);
  if (at == nullptr) return;
  clients_.at(*at).node.reset();
  refuse(*at, reason, text);
  detach(job, node);
}

bool Jobs::has_joined(ConnectionId id) const {
  const Client* client = find_in(clients_, id);
  return client != nullptr && client->node.has_value();
}

void Jobs::restore(const std::string& name, const JobRecord& record, Instant now, Millis grace) {
  effects_.log.push_back(fmt::format(
      "job {}: as before, generation {}, {} of {} restarts used; its agents have {} ms to come back", name,
      record.world.generation, record.restarts_used, record.settings.max_restarts, grace.count()));
  Job job;
  job.name = name;
  job.settings = record.settings;
  job.since = now;
  job.round = make_round(record, now, grace);
  job.recorded = true;
  job.lost_some = true;
  job.forget_at = now + std::max(options_.keep, grace);
  job.known.insert(record.known.begin(), record.known.end());
  for (const membership::Slot& slot : record.world.slots) job.known.insert(slot.node);
  if (record.phase == membership::Phase::kClosed) {
    job.awaited = job.known;
    for (const membership::NodeId& node : record.gone) job.awaited.erase(node);
    job.awaited_until = now + grace;
  }
  Job& kept = jobs_.insert_or_assign(name, std::move(job)).first->second;
  kept.deadline = now;  // something may be to decide at once
  deadlines_.emplace(now, name);
}

void Jobs::store_lost(const NodeAssignment& member, Instant now) {
  Job* const job = find_in(jobs_, member.job);
  if (job == nullptr || !membership::store_lost(job->round, member.node, member.generation)) return;
  job->changed = true;
  run_decisions(*job, now);
}

std::vector<ConnectionId> Jobs::overdue(Instant now) const {
  std::vector<ConnectionId> out;
  for (auto at = deadlines_.begin(); at != deadlines_.end() && at->first <= now; ++at) {
    const Job& job = *find_in(jobs_, at->second);
    if (job.round.next_check > now) continue;
    for (const auto& [id, node] : job.round.nodes)
      if (node.connected && node.last_heard + job.settings.heartbeat_timeout <= now)
        if (const ConnectionId* connection = find_in(job.connections, id)) out.push_back(*connection);
  }
  return out;
}

void Jobs::heard(ConnectionId id, Instant now) {
  const Client* client = find_in(clients_, id);
  if (client == nullptr || !client->node) return;
  Job* const job = find_in(jobs_, client->job);
  if (job != nullptr && membership::heartbeat(job->round, *client->node, now)) run_decisions(*job, now);
}

void Jobs::evict_node(std::string_view name, const membership::NodeId& node, const std::string& why,
                      Instant now) {
  Job* const job = find_in(jobs_, name);
  const membership::Node* entry = job == nullptr ? nullptr : find_in(job->round.nodes, node);
  if (entry == nullptr) return;
  effects_.log.push_back(fmt::format("job {}: lost {}: {}", name, entry->request.host, why));
  membership::lost(job->round, job->settings, node, why, now);
  turn_away(*job, node, Refused::Reason::kLost, why);
  job->lost_some = true;
  job->changed = true;
  run_decisions(*job, now);
}

void Jobs::on_ready(Job& job, const membership::NodeId& node, const control::Ready& ready, Instant now) {
  const membership::Node* entry = find_in(job.round.nodes, node);
  const bool was_ready = entry != nullptr && entry->ready;
  const StepProgress best = job.round.steps.best, reached = job.round.reached;
  const bool counts =
      membership::ready(job.round, node, ready.generation, ready.master_port, now, ready.reached);
  if (record_ && job.recorded && (job.round.steps.best > best || job.round.reached > reached))
    record_(ProgressMade{job.name, progress_of(job.round)});
  run_decisions(job, now);
  // It came while a world runs, and could not be told before.
  if (counts && !was_ready) notify_outsider(job, node, effects_);
}

// Of its own accord.
void Jobs::take_leave(Job& job, Client& client, const std::string& host, const std::string& reason) {
  effects_.log.push_back(fmt::format("job {}: {} leaves: {}", job.name, host, reason));
  membership::left(job.round, *client.node, reason);
  detach(job, *client.node);
  job.known.erase(*client.node);
  client.node.reset();
}

// It may have been meant for a job of its own, which has not run: no success.
void Jobs::turn_away_surplus(Job& job) {
  for (const membership::NodeId& node : membership::surplus(job.round, job.settings)) {
    if (!job.connections.contains(node)) continue;
    membership::left(job.round, node, {});
    job.known.erase(node);
    turn_away(job, node, Refused::Reason::kOver,
              fmt::format("the job succeeded without this node, which was one more than --nnodes={} and "
                          "--spares={}: nothing was run here; was it meant for another job, which needs "
                          "another --rdzv-id?",
                          membership::nodes_text(job.settings), job.settings.spares));
  }
}

void Jobs::send_reason(Job& job, Instant now) {
  if (job.round.phase != Phase::kGathering || !job.changed || now < job.told_at + options_.explain_interval)
    return;
  job.changed = false;
  membership::WaitingReason reason = membership::explain(job.round, job.settings, now);
  std::vector<ConnectionId> newcomers = std::exchange(job.newcomers, {});
  std::erase_if(newcomers, [&](ConnectionId id) {
    const Client* client = find_in(clients_, id);
    return client == nullptr || !client->node;
  });
  const bool same = reason == job.told;
  if (same && newcomers.empty()) return;
  job.told = std::move(reason);
  job.told_at = now;
  control::Waiting out;
  out.present = job.told.present;
  out.min_nodes = job.told.min_nodes;
  out.max_nodes = job.told.max_nodes;
  out.text = membership::to_text(job.told);
  out.rest = std::chrono::ceil<Millis>(job.round.join_deadline - now);
  effects_.deliveries.push_back({same ? std::move(newcomers) : everybody(job), std::move(out)});
}

std::optional<NodeAssignment> Jobs::member(ConnectionId id) const {
  const Client* client = find_in(clients_, id);
  if (client == nullptr || !client->node) return std::nullopt;
  const membership::Round* round = find_round(client->job);
  if (round == nullptr || round->phase != Phase::kRunning) return std::nullopt;
  const membership::Node* node = find_in(round->nodes, *client->node);
  if (node == nullptr || node->group_rank < 0) return std::nullopt;
  return NodeAssignment{client->job, *client->node, round->world.generation};
}

std::vector<control::Message> Jobs::answer(const control::Query& question,
                                           const std::function<bool(std::string_view)>& may_see, Instant now,
                                           control::QueryEnd& over) const {
  std::vector<control::Message> out;
  const Job* one = question.job.empty() ? nullptr : find_in(jobs_, question.job);
  std::vector<const Job*> shown;
  for (const auto& [name, job] : jobs_) {
    if (!may_see(name)) continue;
    ++over.num_jobs;
    if (question.job.empty() && name > question.after) shown.push_back(&job);
  }
  if (one != nullptr && may_see(question.job)) {
    out.emplace_back(describe_job(*one, now));
    std::vector<control::Message> nodes = describe_nodes(
        *one, question.from_number, now, [this](ConnectionId id) { return address_of(id); }, over);
    std::move(nodes.begin(), nodes.end(), std::back_inserter(out));
    return out;
  }
  std::ranges::sort(shown, {}, &Job::name);
  if (shown.size() > control::kMaxQueryEntries) {
    shown.resize(control::kMaxQueryEntries);
    over.more = true;
    over.after = shown.back()->name;
  }
  for (const Job* job : shown) out.emplace_back(describe_job(*job, now));
  return out;
}

}  // namespace muster
