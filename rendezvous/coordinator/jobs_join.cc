// SPDX-License-Identifier: Apache-2.0
// A Join: whose job it is, whether that is over, and whether the agent may take part.
#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/coordinator/jobs.h"

namespace muster {

using control::Refused;
using membership::NodeId;
using membership::Phase;

namespace {

constexpr std::size_t kMaxNameBytes = 255;

std::size_t size_of(const membership::Request& request) {
  std::size_t out = request.host.size() + request.machine.size() + request.role.size() +
                    request.unfit.size() + request.program.size();
  for (const std::string& address : request.addresses) out += address.size();
  return out;
}

}  // namespace

void Jobs::join(ConnectionId id, Client& client, const control::Join& join, Instant now,
                JobsEffects& effects) {
  if (std::string text = membership::defect(join.settings); !text.empty())
    return refuse(id, Refused::Reason::kSettings, std::move(text), effects);
  if (const std::size_t size = size_of(join.request); size > options_.max_node_bytes)
    return refuse(id, Refused::Reason::kLimit,
                  fmt::format("the agent describes itself in {} bytes, the limit is {} (--max-node-bytes)",
                              size, options_.max_node_bytes),
                  effects);
  const auto found = jobs_.find(client.job);
  // Whoever comes to a coordinator's only job was awaited when that ended before its first generation.
  if (found != jobs_.end() && found->second.round.phase == Phase::kClosed &&
      (found->second.known.contains(join.request.id) ||
       (join.resume && *join.resume == found->second.round.world.generation) ||
       (!options_.outlives_jobs && found->second.round.world.slots.empty())))
    return tell_end(found->second, id, client, join, now, effects);
  if (came_too_late(id, client, join, now, effects)) return;
  Job* const job = job_for(id, client, join, now, effects);
  if (job == nullptr) return;
  // Members whose connection is gone for a while are kept too. One that comes back is none more.
  if (job->round.nodes.size() >= options_.max_nodes_per_job && !job->round.nodes.contains(join.request.id))
    return refuse(id, Refused::Reason::kLimit,
                  fmt::format("job {} has {} nodes, the limit (--max-nodes-per-job)", job->name,
                              job->round.nodes.size()),
                  effects);
  membership::Request request = join.request;
  // It appears on other people's terminals.
  request.host = one_line(request.host, kMaxNameBytes);
  request.unfit = one_line(request.unfit);
  request.program = one_line(request.program, kMaxNameBytes);
  request.addresses = reachable_addresses(request.addresses, client.address);
  if (std::string text = disagreement_about_store(*job, request); !text.empty())
    return refuse(id, Refused::Reason::kSettings, one_line(text), effects);
  if (const std::string text = disagreement_about_program(*job, request);
      !text.empty() && job->name == control::kDefaultJob) {
    effects.log.push_back(fmt::format("job {}: refused {}: {}", job->name, request.host, text));
    refuse(id, Refused::Reason::kSettings,
           fmt::format("{} {}: two jobs have met under the run id \"{}\", which every job has that was given "
                       "none; give each its own --rdzv-id, the same on all of its nodes",
                       request.host, text, job->name),
           effects);
    return note_trouble(job->name, {request.host, "settings", text, {}}, now, effects);
  }
  admit(*job, id, client, std::move(request), join, now, effects);
}

// It was away when its job ended.
void Jobs::tell_end(Job& job, ConnectionId id, Client& client, const control::Join& join, Instant now,
                    JobsEffects& effects) {
  client.node = join.request.id;
  if (join.request.order) job.orders_seen.insert(*join.request.order);
  const auto [place, is_new] = job.connections.try_emplace(join.request.id, id);
  // A former connection, that has not ended yet, speaks for nobody any more.
  if (const auto former = is_new ? clients_.end() : clients_.find(std::exchange(place->second, id));
      former != clients_.end() && former->first != id)
    former->second.node.reset();
  job.awaited.erase(join.request.id);
  job.forget_at = Instant::max();
  effects.deliveries.push_back({{id}, control::Closed{job.round.ending}, false});
  settle(job, now, effects);
}

// The agent was running when the last job of this name ended, and is none of those who take part in the next:
// it would wait for nodes that are done.
bool Jobs::came_too_late(ConnectionId id, Client& client, const control::Join& join, Instant now,
                         JobsEffects& effects) {
  const EndedJobs::Entry* ended = ended_.outlived_by(client.job, join.age, now);
  if (ended == nullptr) return false;
  if (const auto job = jobs_.find(client.job);
      job != jobs_.end() && job->second.round.phase != Phase::kClosed &&
      (job->second.known.contains(join.request.id) || job->second.round.nodes.contains(join.request.id)))
    return false;
  if (join.resume) {
    client.refused = true;  // nothing that it says counts any more
    effects.deliveries.push_back({{id}, control::Closed{ended->ending}, false});
    return true;
  }
  const auto ago = std::chrono::duration<double>(now - ended->at).count();
  refuse(
      id, Refused::Reason::kOver,
      fmt::format("{}: the job is over: {}, {:.1f} s ago, when this agent had been started already; "
                  "nothing was run here. Start it again for a new job of this name, or give a job of its "
                  "own another --rdzv-id",
                  one_line(join.request.host, kMaxNameBytes), membership::to_string(ended->ending.kind), ago),
      effects);
  return true;
}

// Everybody has left the former job of this name: this is a new one.
bool Jobs::gives_way(const Job& job, const control::Join& join, Instant now) {
  if (!is_deserted(job) || is_awaited(job, now)) return false;
  if (job.round.phase == Phase::kClosed) return true;
  return !join.resume && (!job.lost_some || !membership::difference(join.settings, job.settings).empty());
}

Jobs::Job* Jobs::job_for(ConnectionId id, const Client& client, const control::Join& join, Instant now,
                         JobsEffects& effects) {
  const auto found = jobs_.find(client.job);
  if (found == jobs_.end() || gives_way(found->second, join, now))
    return begin(id, client, join, now, effects);
  Job& job = found->second;
  if (job.round.phase != Phase::kClosed) return &job;
  if (!options_.outlives_jobs) {
    refuse(
        id, Refused::Reason::kOver,
        fmt::format("{}: the job is over: {}, and this coordinator ends with it",
                    one_line(join.request.host, kMaxNameBytes), membership::to_string(job.round.ending.kind)),
        effects);
    return nullptr;
  }
  // A new job's agent, which has not long to wait.
  refuse(id, Refused::Reason::kBusy,
         fmt::format("the former job of this name is over ({}), and {}; a new one begins when they have gone",
                     membership::to_string(job.round.ending.kind),
                     is_awaited(job, now)
                         ? "its agents may come back to hear of it yet"
                         : fmt::format("{} of its agents have not gone yet", job.connections.size())),
         effects);
  return nullptr;
}

// In place of the former job of this name, if there is one. Generations go on, so that no number is used
// twice while that is kept.
Jobs::Job* Jobs::begin(ConnectionId id, const Client& client, const control::Join& join, Instant now,
                       JobsEffects& effects) {
  std::int64_t last_generation = -1;
  bool was_recorded = false;
  if (const auto former = jobs_.find(client.job); former != jobs_.end()) {
    last_generation = former->second.round.world.generation;
    was_recorded = former->second.recorded;
    deadlines_.erase({former->second.deadline, client.job});
    jobs_.erase(former);
  }
  if (!options_.only_job.empty() && client.job != options_.only_job) {
    refuse(id, Refused::Reason::kSettings,
           fmt::format("this coordinator serves job {} alone, not {}; give one of them another port "
                       "with --rdzv-endpoint",
                       options_.only_job, client.job),
           effects);
    return nullptr;
  }
  if (jobs_.size() >= options_.max_jobs) {
    refuse(id, Refused::Reason::kLimit,
           fmt::format("this coordinator has {} jobs, the limit (--max-jobs)", jobs_.size()), effects);
    return nullptr;
  }
  Job fresh;
  fresh.name = client.job;
  fresh.settings = options_.rules.value_or(join.settings);
  fresh.since = now;
  fresh.round.world.generation = last_generation;
  Job& job = jobs_.emplace(client.job, std::move(fresh)).first->second;
  // The former record gives way to one that remembers its generations.
  if (was_recorded) keep(job, now, effects);
  effects.log.push_back(
      fmt::format("job {}: new, --nnodes={}", client.job, membership::nodes_text(join.settings)));
  return &job;
}

void Jobs::admit(Job& job, ConnectionId id, Client& client, membership::Request request,
                 const control::Join& join, Instant now, JobsEffects& effects) {
  const NodeId node = request.id;
  const membership::Admission admission =
      membership::join(job.round, job.settings, request, join.settings, join.resume, now);
  job.changed = true;
  using Kind = membership::Admission::Kind;
  if (admission.kind == Kind::kRefused) {
    effects.log.push_back(fmt::format("job {}: refused {}: {}", job.name, request.host, admission.text));
    refuse(id, Refused::Reason::kSettings, fmt::format("{} {}", request.host, admission.text), effects);
    settle(job, now, effects);
    return;
  }
  if (const auto former = job.connections.find(node); former != job.connections.end()) {
    clients_.at(former->second).node.reset();
    refuse(former->second, Refused::Reason::kLost, "the agent has connected anew", effects);
  }
  client.node = node;
  if (request.order) job.orders_seen.insert(*request.order);
  job.connections[node] = id;
  remember(job, node);
  if (job.round.phase == Phase::kGathering) job.newcomers.push_back(id);
  job.forget_at = Instant::max();
  if (!is_fit(request))
    effects.log.push_back(fmt::format("job {}: {} is unfit: {}", job.name, request.host, request.unfit));
  remark(job, id, request, join.settings, effects);
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
  // Who was away meanwhile is told when it is ready.
  if (job.round.phase == Phase::kRunning && admission.kind == Kind::kAdmitted) {
    const auto entry = job.round.nodes.find(node);
    if (entry != job.round.nodes.end() && entry->second.group_rank < 0) tell_outsider(job, node, id, effects);
  }
}

// Nodes of a role run the same program, wherever it lies and with whatever arguments: those name a node's
// own rank, address, disk or share of the data, and may hold what is nobody else's business. Roles may
// differ in theirs.
std::string Jobs::disagreement_about_program(const Job& job, const membership::Request& request) {
  const auto first = job.programs.find(request.role);
  if (request.program.empty() || first == job.programs.end() || first->second.name == request.program)
    return {};
  return fmt::format("runs {}, and {} runs {}", request.program, first->second.host, first->second.name);
}

// Once it is admitted.
void Jobs::remark(Job& job, ConnectionId id, const membership::Request& request,
                  const membership::Settings& wanted, JobsEffects& effects) {
  const auto say = [&](const std::string& text) {
    effects.deliveries.push_back({{id}, control::Remark{text}, false});
  };
  if (const std::string text = membership::remark(wanted, job.settings); !text.empty())
    say(fmt::format("{}: {}", request.host, text));
  if (const std::string text = disagreement_about_program(job, request);
      !text.empty() && !std::exchange(job.programs_differ, true)) {
    effects.log.push_back(fmt::format("job {}: {} {}", job.name, request.host, text));
    say(fmt::format("{} {} in the same job, {}; if that is not meant, another job needs another --rdzv-id",
                    request.host, text, job.name));
  }
  if (!request.program.empty() && job.programs.size() < kMaxRoles)
    job.programs.try_emplace(request.role, Program{request.program, request.host});
}

}  // namespace muster
