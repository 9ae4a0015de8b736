// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "launcher/job/worker_env.h"
#include "launcher/plan/job_plan.h"
#include "launcher/text/substitution.h"
#include "launcher/text/text_table.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

constexpr std::string_view kLater = "(known at the rendezvous)";
constexpr const char* kInLogs = "(in the log directory)";

bool ranks_known(const Job& job) {
  return job.mode != RendezvousMode::kElastic || job.elastic.ranks_given;
}

std::string memory_text(const RankPlacement& rank) {
  if (rank.binding.cpus.empty()) return "-";
  return rank.binding.memory_nodes.empty() ? "local" : fmt::format("prefer {}", rank.numa_node);
}

/// As the rendezvous would say it, where that can be known.
Assignment guess(const Job& job) {
  Assignment out;
  out.group_rank = job.node_rank;
  out.group_world_size = job.nodes;
  out.base_rank = out.role_base_rank = job.node_rank * job.local_world_size;
  out.world_size = out.role_world_size = job.nodes * job.local_world_size;
  out.master_addr = job.master_addr;
  out.master_port = job.master_port;
  return out;
}

bool known(const Job& job, std::string_view name) {
  if (name == env::kMasterPort && job.mode == RendezvousMode::kStandalone) return job.master_port != 0;
  if (job.mode != RendezvousMode::kElastic || (job.elastic.ranks_given && !job.elastic.store_proxy))
    return true;
  const std::array places = {env::kMasterAddr, env::kMasterPort, env::kGlooInterface, env::kNcclInterface};
  if (std::ranges::find(places, name) != places.end()) return false;
  const std::array ranks = {env::kRank,           env::kWorldSize, env::kGroupRank,
                            env::kGroupWorldSize, env::kRoleRank,  env::kRoleWorldSize};
  return ranks_known(job) || std::ranges::find(ranks, name) == ranks.end();
}

std::string command_line(const Job& job, int local_rank) {
  std::string out = substitute_local_rank(job.command.path, local_rank);
  for (std::size_t i = 1; i < job.command.arguments.size(); ++i)
    out += " " + shell_word(substitute_local_rank(job.command.arguments[i], local_rank));
  return out;
}

using Row = std::vector<std::string>;

Row placement_row(const Job& job, int local_rank) {
  const RankPlacement& rank = job.placement[static_cast<std::size_t>(local_rank)];
  return {std::to_string(local_rank),
          rank.logical < 0 ? "-" : std::to_string(rank.logical),
          rank.gpu ? std::to_string(rank.gpu->index) : "-",
          rank.device.starts_with("MIG-") ? rank.device : or_dash(rank.gpu ? rank.gpu->uuid : ""),
          or_dash(rank.gpu ? rank.gpu->pci : ""),
          rank.numa_node < 0 ? "-" : std::to_string(rank.numa_node),
          (rank.binding.cpus.empty() ? "any of " : "") + to_ranges(rank.cpus),
          std::to_string(rank.cores),
          memory_text(rank)};
}

}  // namespace

std::string placement_table(const Job& job) {
  std::string out =
      fmt::format("{}: {}; {}\n", job.host, counted(job.local_world_size, "worker"), job.hardware);
  if (job.placement.empty()) return out;
  std::vector<Row> rows{{"rank", "local", "CUDA", "GPU", "UUID", "PCI", "NUMA", "CPUs", "cores", "memory"}};
  for (int i = 0; i < job.local_world_size; ++i) {
    Row& row = rows.emplace_back(placement_row(job, i));
    const int rank = job.node_rank * job.local_world_size + i;
    row.insert(row.begin(), ranks_known(job) ? std::to_string(rank) : "?");
  }
  out += text_table(rows);
  for (int i = 0; i < job.local_world_size; ++i)
    if (const std::string& note = job.placement[static_cast<std::size_t>(i)].note; !note.empty())
      out += fmt::format("local rank {}: {}\n", i, note);
  return out;
}

std::string dry_run_text(const Job& job, const Environment& inherited) {
  std::string out = placement_table(job);
  if (ranks_known(job) && job.nodes > 1)
    out += fmt::format("ranks as if each of the {} nodes had {} workers\n", job.nodes, job.local_world_size);
  out += fmt::format("command: {}\n", command_line(job, 0));
  const auto line = [&](std::string_view name, std::string_view value) {
    return fmt::format("  {}={}\n", name, known(job, name) ? value : kLater);
  };
  const Assignment assignment = guess(job);
  out += "environment of all:\n";
  for (const auto& [name, value] : shared_environment(inherited, job, assignment))
    if (lookup(inherited, name) != value || !known(job, name)) out += line(name, value);
  for (int i = 0; i < job.local_world_size; ++i) {
    out += fmt::format("local rank {}:\n", i);
    const auto own = rank_variables(inherited, job, assignment, i, kInLogs, kInLogs);
    if (!own) return out + own.error().message + '\n';
    for (const auto& [name, value] : *own) out += line(name, value);
  }
  return out + "nothing was started (--dry-run)\n";
}

}  // namespace muster::launcher
