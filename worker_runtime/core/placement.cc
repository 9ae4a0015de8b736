// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/placement.h"

#include <fmt/format.h>

#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/slurm_step.h"

namespace muster {
namespace {

constexpr std::int64_t kMaxWorld = 1 << 20;

/// "scheme://authority/path?name=value&name=value"
struct Url {
  std::string scheme;
  std::string authority;
  std::string path;
  Environment query;
};

Result<Url> parse_url(std::string_view text) {
  Url url;
  const auto scheme_end = text.find("://");
  if (scheme_end == std::string_view::npos)
    return invalid("init method '{}' has no scheme; use env://, tcp://host:port or file:///path", text);
  url.scheme = text.substr(0, scheme_end);
  std::string_view rest = text.substr(scheme_end + 3);
  if (const auto mark = rest.find('?'); mark != std::string_view::npos) {
    std::string_view query = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
    while (!query.empty()) {
      const std::string_view pair = query.substr(0, query.find('&'));
      query.remove_prefix(std::min(pair.size() + 1, query.size()));
      const auto equals = pair.find('=');
      if (equals == std::string_view::npos) return invalid("init method '{}': '{}' has no '='", text, pair);
      url.query.emplace(pair.substr(0, equals), pair.substr(equals + 1));
    }
  }
  const auto slash = rest.find('/');
  url.authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) url.path = rest.substr(slash);
  return url;
}

/// A variable that is set and not empty: launchers export empty ones.
std::optional<std::string_view> value_of(const Environment& environment, std::string_view name) {
  const auto value = lookup(environment, name);
  return value && !value->empty() ? value : std::nullopt;
}

Result<std::optional<int>> optional_integer(const Environment& environment, std::string_view name) {
  const auto text = value_of(environment, name);
  if (!text) return std::nullopt;
  MUSTER_TRY(const auto value, parse_integer(name, *text, 0, kMaxWorld));
  return static_cast<int>(value);
}

/// Nobody else says who this process is. Whoever mpirun started inherits the variables of a task that is
/// none of these ranks.
bool asks_slurm(const Environment& environment, const Url& url) {
  for (const std::string_view name : {env::kRank, env::kWorldSize})
    if (value_of(environment, name)) return false;
  if (url.query.contains("rank") || url.query.contains("world_size")) return false;
  if (value_of(environment, "OMPI_COMM_WORLD_SIZE")) return false;
  // srun --mpi=pmi2 says the same as Slurm, mpiexec something of its own.
  const auto agrees = [&](std::string_view mpi, std::string_view slurm) {
    const auto value = value_of(environment, mpi);
    return !value || value == value_of(environment, slurm);
  };
  return agrees("PMI_RANK", "SLURM_PROCID") && agrees("PMI_SIZE", "SLURM_STEP_NUM_TASKS");
}

/// With what `srun -n 4 program` says in the names of a launcher, MASTER_ADDR and MASTER_PORT where they are
/// not given: as muster --exec writes them. As it is outside of a step, and in a step of one task.
Result<Environment> with_slurm(const Environment& environment) {
  const bool has_host = value_of(environment, env::kMasterAddr).has_value();
  const bool has_port = value_of(environment, env::kMasterPort).has_value();
  const auto step = read_slurm_step(environment);
  if (!step) {
    if (has_host && has_port) return environment;
    return invalid(
        "which rank this Slurm task has is not clear: {}; with RANK=0 and WORLD_SIZE=1 it is alone",
        step.error().message);
  }
  if (!*step || (*step)->num_tasks == 1) return environment;
  const SlurmStep& task = **step;
  Environment out = environment;
  const auto set = [&](std::string_view name, std::string value) {
    out.insert_or_assign(std::string(name), std::move(value));
  };
  set(env::kRank, std::to_string(task.task));
  set(env::kWorldSize, std::to_string(task.num_tasks));
  set(env::kLocalRank, std::to_string(task.local_task));
  set(env::kLocalWorldSize, std::to_string(task.local_tasks()));
  if (!has_host) {
    const auto head = task.het_job ? std::nullopt : step_head(task);
    if (!head)
      return invalid(
          "task {} of {} of Slurm's step {} does not know which node has rank 0 (srun -m arbitrary, a "
          "heterogeneous job); export MASTER_ADDR, or run: srun ... muster --exec --master-addr=HOST PROGRAM",
          task.task, task.num_tasks, task.id());
    set(env::kMasterAddr, *head);
    out.erase(std::string(env::kUseAgentStore));
  }
  if (!has_port) set(env::kMasterPort, std::to_string(step_port(task)));
  return out;
}

/// The names under which a launcher tells who a process is.
struct Names {
  std::string_view rank, world_size, local_rank, local_world_size;
};
constexpr Names kTorchNames{env::kRank, env::kWorldSize, env::kLocalRank, env::kLocalWorldSize};
// How many tasks are on this node is a list for all nodes there (SLURM_TASKS_PER_NODE): found out from the
// hosts.
constexpr Names kSlurmNames{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""};

Result<void> read_ranks(const Environment& environment, const Url& url, Placement& out) {
  const bool slurm = !value_of(environment, env::kRank) && !url.query.contains("rank") &&
                     value_of(environment, kSlurmNames.rank) && value_of(environment, env::kMasterAddr);
  const Names& names = slurm ? kSlurmNames : kTorchNames;
  const auto read = [&](std::string_view parameter, std::string_view variable, std::int64_t min,
                        std::int64_t max) -> Result<std::int64_t> {
    if (const auto text = lookup(url.query, parameter)) return parse_integer(parameter, *text, min, max);
    if (url.scheme != "env" && !value_of(environment, variable))
      return invalid("init method {}://: {} parameter missing; append ?rank=R&world_size=W, or set {}",
                     url.scheme, parameter, variable);
    return require_integer(environment, variable, min, max);
  };
  MUSTER_TRY(const auto world_size, read("world_size", names.world_size, 1, kMaxWorld));
  const auto rank = read("rank", names.rank, 0, world_size - 1);
  if (!rank) return fail(fmt::format("world size {}", world_size), rank.error());
  out.world_size = static_cast<int>(world_size);
  out.rank = static_cast<int>(*rank);
  MUSTER_TRY(out.local_rank, optional_integer(environment, names.local_rank));
  MUSTER_TRY(out.local_world_size, optional_integer(environment, names.local_world_size));
  return {};
}

Result<void> read_port(std::string_view name, std::string_view text, Placement& out) {
  MUSTER_TRY(const auto port, parse_integer(name, text, 1, 65535));
  out.port = static_cast<std::uint16_t>(port);
  return {};
}

Result<void> read_env_store(const Environment& environment, Placement& out) {
  const auto host = value_of(environment, env::kMasterAddr);
  const auto port = value_of(environment, env::kMasterPort);
  if (!host && !port && out.world_size == 1) return {};
  for (const std::string_view name : {env::kMasterAddr, env::kMasterPort})
    if (!value_of(environment, name))
      return invalid(
          "environment variable {} is not set, but {} ranks have to find each other; start the program with "
          "muster or torchrun, or export it before srun",
          name, out.world_size);
  out.store = Placement::StoreKind::kTcp;
  out.host = *host;
  MUSTER_OK(read_port(env::kMasterPort, *port, out));
  // Exactly this text, as PyTorch's rendezvous compares it.
  out.hosts_server = out.rank == 0 && lookup(environment, env::kUseAgentStore) != "True";
  return {};
}

Result<void> read_tcp_store(const Url& url, Placement& out) {
  const auto colon = url.authority.rfind(':');
  if (colon == std::string::npos || colon == 0 || url.authority.ends_with(':'))
    return invalid("init method tcp://{}: host or port number missing; use tcp://host:port", url.authority);
  out.store = Placement::StoreKind::kTcp;
  out.host = url.authority.substr(0, colon);
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']')
    out.host = out.host.substr(1, out.host.size() - 2);
  MUSTER_OK(read_port("port", url.authority.substr(colon + 1), out));
  out.hosts_server = out.rank == 0;
  return {};
}

}  // namespace

Result<Placement> find_placement(std::string_view init_method, const Environment& given) {
  MUSTER_TRY(const Url url, parse_url(init_method));
  Environment environment = given;
  if (url.scheme == "env" && asks_slurm(given, url)) {
    MUSTER_TRY(environment, with_slurm(given));
  }
  Placement out;
  MUSTER_TRY(const auto restarts, optional_integer(environment, env::kRestartCount));
  out.restart_count = restarts.value_or(0);
  if (url.scheme == "env") {
    const bool told = value_of(environment, env::kRank) || value_of(environment, env::kWorldSize) ||
                      value_of(environment, env::kMasterAddr) || url.query.contains("rank");
    if (!told) return out;  // started by hand: a world of one
    MUSTER_OK(read_ranks(environment, url, out));
    MUSTER_OK(read_env_store(environment, out));
  } else if (url.scheme == "tcp") {
    MUSTER_OK(read_ranks(environment, url, out));
    MUSTER_OK(read_tcp_store(url, out));
  } else if (url.scheme == "file") {
    if (url.path.size() < 2 || !url.authority.empty())
      return invalid("init method '{}': path missing; use file:///path?rank=R&world_size=W", init_method);
    MUSTER_OK(read_ranks(environment, url, out));
    out.store = Placement::StoreKind::kFile;
    out.path = url.path;
  } else {
    return invalid("init method '{}': no such scheme; use env://, tcp://host:port or file:///path",
                   init_method);
  }
  return out;
}

}  // namespace muster
