// SPDX-License-Identifier: Apache-2.0
// What of the jobs outlives a coordinator or its stalls and what does not, and nodes that somebody else
// knows to be gone.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/coordinator/jobs.h"

namespace muster {

void Jobs::forget(const Job& job) {
  if (recorder_ != nullptr && job.recorded) recorder_->job_forgotten(job.name);
}

// Of the long lost none comes back.
void Jobs::remember(Job& job, const membership::NodeId& node) const {
  if (job.known.size() >= options_.max_nodes_per_job)
    std::erase_if(job.known, [&](const membership::NodeId& id) { return !job.round.nodes.contains(id); });
  job.known.insert(node);
}

void Jobs::keep(Job& job, Instant now, JobsEffects& effects) {
  if (recorder_ == nullptr) return;
  const JobRecord record = record_of(job, now);
  const auto members = std::count_if(job.round.world.slots.begin(), job.round.world.slots.end(),
                                     [&](const auto& slot) { return job.known.contains(slot.node); });
  const std::size_t others = job.known.size() - static_cast<std::size_t>(members);
  if (record.known.size() < others && !std::exchange(job.cut, true))
    effects.log.push_back(fmt::format(
        "job {}: of {} nodes outside its world {} fit into its record of {} bytes; if this coordinator dies, "
        "the others may not hear how the job ended",
        job.name, others, record.known.size(), options_.max_record_bytes));
  recorder_->job(job.name, record);
  job.recorded = true;
}

JobRecord Jobs::record_of(const Job& job, Instant now) const {
  JobRecord out = make_record(job.settings, job.round, now);
  auto known = job.known;
  for (const membership::Slot& slot : job.round.world.slots) known.erase(slot.node);
  out.known.assign(known.begin(), known.end());
  if (const std::size_t room = known.empty() ? 0 : room_for_known(out, options_.max_record_bytes);
      room < known.size()) {
    // Who is here comes before who was lost.
    std::partition(out.known.begin(), out.known.end(),
                   [&](const membership::NodeId& node) { return job.connections.contains(node); });
    out.known.resize(room);
  }
  std::sort(out.known.begin(), out.known.end());
  if (job.round.phase != membership::Phase::kClosed) return out;
  const auto note = [&](const membership::NodeId& node) {
    if (!job.connections.contains(node) && !job.awaited.contains(node)) out.gone.push_back(node);
  };
  for (const membership::Slot& slot : job.round.world.slots) note(slot.node);
  for (const membership::NodeId& node : out.known) note(node);
  return out;
}

void Jobs::describe(JobRecorder& to, Instant now) const {
  for (const auto& [name, job] : jobs_)
    if (job.recorded) to.job(name, record_of(job, now));
}

void Jobs::detach(Job& job, const membership::NodeId& node) {
  if (job.connections.erase(node) > 0 && job.round.phase == membership::Phase::kClosed && job.recorded &&
      recorder_ != nullptr)
    recorder_->job_left(job.name, node);
}

// Whoever was here when the coordinator stopped is here yet as far as anybody knows: the job is no other's to
// begin anew.
bool Jobs::is_awaited(const Job& job, Instant now) {
  return job.round.phase == membership::Phase::kClosed && !job.awaited.empty() && now < job.awaited_until;
}

bool Jobs::has_joined(ConnectionId id) const {
  const auto found = clients_.find(id);
  return found != clients_.end() && found->second.node.has_value();
}

std::optional<ConnectionId> Jobs::place_taken_back(ConnectionId id, const control::Join& join) const {
  const auto client = clients_.find(id);
  const auto found = client == clients_.end() ? jobs_.end() : jobs_.find(client->second.job);
  if (found == jobs_.end()) return std::nullopt;
  const membership::Round& round = found->second.round;
  const auto node = round.nodes.find(join.request.id);
  if (round.phase != membership::Phase::kRunning || round.pending || node == round.nodes.end() ||
      node->second.group_rank < 0 || node->second.ready)
    return std::nullopt;
  const bool before = !join.resume || *join.resume < round.world.generation;
  if (before ? !node->second.untold : *join.resume != round.world.generation) return std::nullopt;
  const auto former = found->second.connections.find(join.request.id);
  return former == found->second.connections.end() ? 0 : former->second;
}

void Jobs::restore(const std::string& name, const JobRecord& record, Instant now, Millis grace,
                   JobsEffects& effects) {
  effects.log.push_back(fmt::format(
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

void Jobs::store_lost(const Membership& member, Instant now, JobsEffects& effects) {
  const auto found = jobs_.find(member.job);
  if (found == jobs_.end() || !membership::store_lost(found->second.round, member.node, member.generation))
    return;
  found->second.changed = true;
  settle(found->second, now, effects);
}

std::vector<ConnectionId> Jobs::overdue(Instant now) const {
  std::vector<ConnectionId> out;
  for (auto at = deadlines_.begin(); at != deadlines_.end() && at->first <= now; ++at) {
    const Job& job = jobs_.find(at->second)->second;
    if (job.round.next_check > now) continue;
    for (const auto& [id, node] : job.round.nodes)
      if (node.connected && node.last_heard + job.settings.heartbeat_timeout <= now)
        if (const auto found = job.connections.find(id); found != job.connections.end())
          out.push_back(found->second);
  }
  return out;
}

void Jobs::heard(ConnectionId id, Instant now, JobsEffects& effects) {
  const auto client = clients_.find(id);
  if (client == clients_.end() || !client->second.node) return;
  const auto job = jobs_.find(client->second.job);
  if (job != jobs_.end() && membership::heartbeat(job->second.round, *client->second.node, now))
    settle(job->second, now, effects);
}

void Jobs::give_up(std::string_view name, const membership::NodeId& node, const std::string& why, Instant now,
                   JobsEffects& effects) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  const auto entry = job.round.nodes.find(node);
  if (entry == job.round.nodes.end()) return;
  effects.log.push_back(fmt::format("job {}: lost {}: {}", name, entry->second.request.host, why));
  membership::lost(job.round, job.settings, node, why, now);
  if (const auto at = job.connections.find(node); at != job.connections.end()) {
    clients_.at(at->second).node.reset();
    refuse(at->second, control::Refused::Reason::kLost, why, effects);
    detach(job, node);
  }
  job.lost_some = true;
  job.changed = true;
  settle(job, now, effects);
}

}  // namespace muster
