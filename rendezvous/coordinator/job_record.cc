// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job_record.h"

#include <algorithm>
#include <chrono>

#include "rendezvous/protocol/record_fields.h"

namespace muster {

using membership::NodeId;
using membership::Phase;

namespace membership {

template <class Io>
void fields(Io& io, NodeId& id) {
  io(id.high, id.low);
}
template <class Io>
void fields(Io& io, Slot& slot) {
  fields(io, slot.node);
  io(slot.host, slot.machine, slot.role, slot.order, slot.ranks, slot.base_rank, slot.role_base_rank,
     slot.role_world_size);
}

}  // namespace membership

template <class Io>
void fields(Io& io, StepLedger::Entry& entry) {
  io(entry.generation, entry.reached.epoch, entry.reached.step);
}

template <class Io>
void fields(Io& io, StepLedger& steps) {
  io(steps.best.epoch, steps.best.step, steps.fruitless, steps.last);
}

namespace {

template <class Io>
void fields(Io& io, JobRecord& record) {
  auto& rules = record.settings;
  io(rules.min_nodes, rules.max_nodes, rules.spares, rules.max_restarts, rules.join_timeout,
     rules.last_call_timeout, rules.stop_timeout, rules.heartbeat_timeout, rules.cool_down,
     rules.reconnect_grace, rules.grow_at_safe_point, rules.safe_point_patience, rules.restart_after_loss,
     rules.max_without_progress);
  fields(io, record.progress.steps);
  auto& ending = record.ending;
  io(record.phase, record.restarts_used, record.world.generation, record.world.world_size, record.world.slots,
     record.world.master_addresses, record.world.master_port, record.finished, ending.kind, ending.host,
     ending.group_rank, ending.rank, ending.exit_code, ending.text);
}

template <class Io>
void rest_of(Io& io, JobProgress& progress) {
  io(progress.reached.epoch, progress.reached.step, progress.unnoted);
}

bool sensible(const StepLedger& steps) {
  return steps.fruitless >= 0 && steps.last.size() <= StepLedger::kMost;
}

// So that nothing overflows, and no index is beyond its list, in the round that is made of it.
bool sensible(const JobRecord& record) {
  constexpr std::int64_t kMaxGeneration = std::int64_t{1} << 41;
  const auto& rules = record.settings;
  const auto& world = record.world;
  return record.phase <= Phase::kClosed && record.ending.kind <= membership::Cause::Kind::kStoreLost &&
         membership::defect(rules).empty() && record.restarts_used >= 0 &&
         record.restarts_used <= rules.max_restarts && sensible(record.progress.steps) &&
         (record.phase == Phase::kGathering || !record.progress.unnoted) && world.generation >= -1 &&
         world.generation <= kMaxGeneration && (record.phase != Phase::kRunning || !world.slots.empty()) &&
         std::all_of(world.slots.begin(), world.slots.end(),
                     [](const auto& slot) {
                       return slot.ranks >= 1 && slot.ranks <= membership::kMaxRanksPerNode;
                     }) &&
         std::all_of(record.excluded.begin(), record.excluded.end(), [&](const auto& entry) {
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
      const auto found = round.nodes.find(slot.node);
      if (found == round.nodes.end() || found->second.finished) out.finished.push_back(slot.node);
    }
  }
  for (const auto& [machine, until] : round.excluded)
    if (until > now)  // a clock that went back must not make a record that makes no sense
      out.excluded.emplace_back(machine,
                                std::min(settings.cool_down, std::chrono::ceil<Millis>(until - now)));
  if (round.phase == Phase::kClosed) out.ending = round.ending;
  return out;
}

std::size_t room_for_known(const JobRecord& record, std::size_t max_bytes) {
  JobRecord bare = record;
  bare.known.clear();
  bare.finished.clear();
  bare.gone.clear();
  std::string bytes;
  encode(bare, bytes);
  // Each member finishes or goes once; steps may be told of meanwhile.
  const std::size_t later = record.world.slots.size() * sizeof(NodeId) + sizeof(StepLedger::Entry) * 16;
  const std::size_t used = bytes.size() + later;
  return used >= max_bytes ? 0 : (max_bytes - used) / (2 * sizeof(NodeId));
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
    const auto found = out.nodes.find(id);
    if (found == out.nodes.end() || found->second.finished) continue;
    found->second.finished = true;
    ++out.num_finished;
  }
  out.next_check = now + grace;
  return out;
}

void encode(const JobRecord& record, std::string& out) {
  FieldWriter io(out);
  // As in FieldWriter: fields() serves both directions.
  fields(io, const_cast<JobRecord&>(record));
  io(record.excluded.size());
  for (const auto& [machine, rest] : record.excluded) io(machine, rest);
  io(record.known, record.gone);
  rest_of(io, const_cast<JobProgress&>(record.progress));
}

void encode(const JobProgress& progress, std::string& out) {
  FieldWriter io(out);
  fields(io, const_cast<StepLedger&>(progress.steps));
  rest_of(io, const_cast<JobProgress&>(progress));
}

std::optional<JobProgress> decode_progress(std::string_view bytes) {
  JobProgress out;
  FieldReader io(bytes);
  fields(io, out.steps);
  rest_of(io, out);
  if (!io.ok() || !io.at_end() || !sensible(out.steps)) return std::nullopt;
  return out;
}

std::optional<JobRecord> decode_job(std::string_view bytes) {
  JobRecord out;
  FieldReader io(bytes);
  fields(io, out);
  const std::int64_t num_excluded = io.number();
  for (std::int64_t i = 0; i < num_excluded && io.ok(); ++i) {
    auto& [machine, rest] = out.excluded.emplace_back();
    io(machine, rest);
  }
  // Records of older logs end before the one or the other.
  if (!io.at_end()) io(out.known, out.gone);
  if (!io.at_end()) rest_of(io, out.progress);
  if (!io.ok() || !io.at_end() || !sensible(out)) return std::nullopt;
  return out;
}

}  // namespace muster
