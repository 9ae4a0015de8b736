// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job_record.h"

#include <chrono>

#include "rendezvous/base/archive.h"
#include "rendezvous/base/key_map.h"

namespace muster {

using membership::NodeId;
using membership::Phase;

namespace {

bool sensible(const ProgressTracker& steps) {
  return steps.no_progress_count >= 0 && steps.last.size() <= ProgressTracker::kMost;
}

// So that nothing overflows, and no index is beyond its list, in the round that is made of it.
bool sensible(const JobRecord& record) {
  constexpr std::int64_t kMaxGeneration = std::int64_t{1} << 41;
  const auto& rules = record.settings;
  const auto& world = record.world;
  return membership::defect(rules).empty() && record.restarts_used >= 0 &&
         record.restarts_used <= rules.max_restarts && sensible(record.progress.steps) &&
         (record.phase == Phase::kGathering || !record.progress.unnoted) && world.generation >= -1 &&
         world.generation <= kMaxGeneration && (record.phase != Phase::kRunning || !world.slots.empty()) &&
         std::ranges::all_of(world.slots,
                             [](const auto& slot) {
                               return slot.ranks >= 1 && slot.ranks <= membership::kMaxRanksPerNode;
                             }) &&
         std::ranges::all_of(record.excluded, [&](const auto& entry) {
           return entry.second.count() >= 0 && entry.second <= rules.cool_down;
         });
}

}  // namespace

JobProgress progress_of(const membership::Round& round) {
  JobProgress out{round.steps, round.reached, round.unnoted};
  if (round.phase != Phase::kGathering) out.unnoted.reset();
  return out;
}

JobRecord make_record(const membership::Settings& settings, const membership::Round& round, Instant now) {
  JobRecord out;
  out.settings = settings;
  out.phase = round.phase;
  out.restarts_used = round.restarts_used;
  out.progress = progress_of(round);
  out.world = round.world;
  if (round.phase == Phase::kRunning && round.num_finished > 0) {
    for (const membership::Slot& slot : round.world.slots) {
      // One that is gone while its world runs on had finished.
      const membership::Node* node = find_in(round.nodes, slot.node);
      if (node == nullptr || node->finished) out.finished.push_back(slot.node);
    }
  }
  for (const auto& [machine, until] : round.excluded)
    if (until > now)  // a clock that went back must not make a record that makes no sense
      out.excluded.emplace_back(machine,
                                std::min(settings.cool_down, std::chrono::ceil<Millis>(until - now)));
  if (round.phase == Phase::kClosed) out.ending = round.ending;
  return out;
}

membership::Round make_round(const JobRecord& record, Instant now, Millis grace) {
  membership::Round out;
  out.phase = record.phase;
  out.restarts_used = record.restarts_used;
  out.steps = record.progress.steps;
  out.reached = record.progress.reached;
  out.unnoted = record.progress.unnoted;
  out.world = record.world;
  out.ending = record.ending;
  for (const auto& [machine, rest] : record.excluded) out.excluded[machine] = now + rest;
  if (record.phase != Phase::kRunning) return out;
  for (const membership::Slot& slot : record.world.slots) {
    membership::Node node;
    node.request.id = slot.node;
    node.request.host = slot.host;
    node.request.machine = slot.machine;
    node.request.role = slot.role;
    node.request.order = slot.order;
    node.request.wanted_ranks = slot.ranks;
    node.arrival = out.next_arrival;
    node.group_rank = static_cast<int>(out.next_arrival++);
    node.connected = false;
    node.ready = false;
    node.untold = true;
    node.last_heard = now;
    node.disconnected_at = now;
    node.back_by = now + grace;
    out.nodes.emplace(slot.node, std::move(node));
  }
  for (const NodeId& id : record.finished) {
    membership::Node* node = find_in(out.nodes, id);
    if (node == nullptr || std::exchange(node->finished, true)) continue;
    ++out.num_finished;
  }
  out.next_check = now + grace;
  return out;
}

void encode(const JobRecord& record, std::string& out) {
  ArchiveWriter{out}(record);
}

std::optional<JobRecord> decode_job(std::string_view bytes) {
  auto out = from_archive<JobRecord>(bytes);
  if (out && !sensible(*out)) out.reset();
  return out;
}

bool makes_sense(const JobChange& change) {
  if (const auto* recorded = std::get_if<JobRecorded>(&change)) return sensible(recorded->record);
  if (const auto* made = std::get_if<ProgressMade>(&change)) return sensible(made->progress.steps);
  return true;
}

void apply(const JobChange& change, JobRecords& jobs) {
  if (const auto* recorded = std::get_if<JobRecorded>(&change)) {
    jobs.insert_or_assign(std::string(recorded->job), recorded->record);
    return;
  }
  const auto found = jobs.find(std::visit([](const auto& each) { return each.job; }, change));
  if (found == jobs.end()) return;
  JobRecord& record = found->second;
  if (const auto* finished = std::get_if<MemberFinished>(&change))
    record.finished.push_back(finished->node);
  else if (const auto* made = std::get_if<ProgressMade>(&change))
    record.progress = made->progress;
  else if (const auto* gone = std::get_if<NodeGone>(&change))
    record.has_gone(gone->node);
  else
    jobs.erase(found);
}

}  // namespace muster
