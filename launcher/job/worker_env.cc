// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/worker_env.h"

#include <fmt/format.h>

#include "launcher/text/usage_error.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/split.h"

namespace muster::launcher {
namespace {

constexpr std::string_view kVisibleDevices = env::kCudaVisible;

/// One worker alone gets no limit, as with torchrun, unless it would take its CPU time for more than it is.
bool divides_threads(const Environment& inherited, const Job& job) {
  return (job.local_world_size > 1 || job.cpu_quota_limited) && !lookup(inherited, env::kOmpNumThreads);
}

/// torchrun's way to spare a large job the exchange of roles: all workers are taken to be of one.
bool all_alike(const Environment& inherited) {
  return lookup(inherited, "TORCH_ELASTIC_WORKER_IDENTICAL") == "1";
}

/// What one worker sees of the devices with --virtual-local-rank: its placement's, or an entry of the agent's
/// own list.
Result<std::string> virtual_device(const Environment& inherited, const Job& job, int local_rank) {
  const auto place = static_cast<std::size_t>(local_rank);
  if (place < job.placement.size() && !job.placement[place].device.empty())
    return job.placement[place].device;
  const auto list = lookup(inherited, kVisibleDevices);
  if (!list) return std::to_string(local_rank);
  const auto entries = split(*list, ',');
  if (place < entries.size() && !trimmed(entries[place]).empty()) return std::string(trimmed(entries[place]));
  return usage(
      "--virtual-local-rank: CUDA_VISIBLE_DEVICES={} has no device for local rank {}; "
      "list more devices or lower --nproc-per-node",
      *list, local_rank);
}

}  // namespace

Environment shared_environment(const Environment& inherited, const Job& job, const Assignment& assignment) {
  Environment out = inherited;
  const auto set = [&](std::string_view name, std::string value) {
    out.insert_or_assign(std::string(name), std::move(value));
  };
  set(env::kWorldSize, std::to_string(assignment.world_size));
  set(env::kLocalWorldSize, std::to_string(job.local_world_size));
  set(env::kGroupRank, std::to_string(assignment.group_rank));
  set(env::kGroupWorldSize, std::to_string(assignment.group_world_size));
  set(env::kRoleName, job.role);
  set(env::kRoleWorldSize,
      std::to_string(all_alike(inherited) ? assignment.world_size : assignment.role_world_size));
  set(env::kMasterAddr, assignment.master_addr);
  set(env::kMasterPort, std::to_string(assignment.master_port));
  set(env::kRestartCount, std::to_string(assignment.attempt));
  set(env::kMaxRestarts, std::to_string(job.max_restarts));
  set(env::kRunId, job.run_id);
  set(env::kUseAgentStore, "True");
  set(env::kSignalsToHandle, job.signals_text);
  set(env::kLineage, job.lineage);
  out.try_emplace(std::string(env::kNcclAsyncErrorHandling), "1");
  if (job.placement.empty() && divides_threads(inherited, job))
    set(env::kOmpNumThreads, std::to_string(job.threads));
  if (job.gpu_node) out.try_emplace(std::string(env::kCudaOrder), "PCI_BUS_ID");
  if (!job.visible_devices.empty()) set(kVisibleDevices, job.visible_devices);
  if (!assignment.interface.empty()) {
    out.try_emplace(std::string(env::kGlooInterface), assignment.interface);
    out.try_emplace(std::string(env::kNcclInterface), assignment.interface);
  }
  for (const std::string_view name : {env::kRank, env::kLocalRank, env::kRoleRank, env::kErrorFile,
                                      env::kProgressFile, env::kSafePointFile, env::kSecret})
    out.erase(std::string(name));
  if (job.virtual_local_rank) out.erase(std::string(kVisibleDevices));
  return out;
}

Result<RankVariables> rank_variables(const Environment& inherited, const Job& job,
                                     const Assignment& assignment, int local_rank, std::string error_file,
                                     std::string progress_file) {
  RankVariables out;
  out.emplace_back(env::kRank, std::to_string(assignment.base_rank + local_rank));
  out.emplace_back(env::kLocalRank, job.virtual_local_rank ? "0" : std::to_string(local_rank));
  const int role_base = all_alike(inherited) ? assignment.base_rank : assignment.role_base_rank;
  out.emplace_back(env::kRoleRank, std::to_string(role_base + local_rank));
  out.emplace_back(env::kErrorFile, std::move(error_file));
  if (job.elastic.rules.grow_at_safe_point && !progress_file.empty())
    out.emplace_back(env::kSafePointFile, safe_point_file(progress_file));
  out.emplace_back(env::kProgressFile, std::move(progress_file));
  if (job.virtual_local_rank) {
    MUSTER_TRY(std::string device, virtual_device(inherited, job, local_rank));
    out.emplace_back(kVisibleDevices, std::move(device));
  }
  if (!job.placement.empty() && divides_threads(inherited, job))
    out.emplace_back(env::kOmpNumThreads,
                     std::to_string(job.placement[static_cast<std::size_t>(local_rank)].threads));
  return out;
}

Result<void> check_visible_devices(const Environment& inherited, const Job& job) {
  if (!job.virtual_local_rank) return {};
  for (int rank = 0; rank < job.local_world_size; ++rank)
    if (auto device = virtual_device(inherited, job, rank); !device) return fail(std::move(device).error());
  return {};
}

std::string safe_point_file(const std::string& progress_file) {
  return progress_file + ".safe-point";
}

std::string threads_notice(const Environment& inherited, const Job& job) {
  if (!divides_threads(inherited, job)) return {};
  int least = job.threads, most = job.threads;
  if (!job.placement.empty()) {
    const auto [first, last] = std::ranges::minmax_element(job.placement, {}, &RankPlacement::threads);
    least = first->threads;
    most = last->threads;
  }
  if (most <= 1) return {};
  if (job.local_world_size == 1)
    return fmt::format(
        "OMP_NUM_THREADS is not set: the worker gets {} threads, as many as the cgroup's CPU time keeps busy",
        most);
  return fmt::format(
      "OMP_NUM_THREADS is not set: each of the {} workers gets {}{} threads, its share of the cores",
      job.local_world_size, least == most ? "" : fmt::format("{} to ", least), most);
}

}  // namespace muster::launcher
