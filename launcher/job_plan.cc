// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_plan.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <signal.h>

#include <fmt/format.h>

#include "launcher/nproc.h"
#include "launcher/program.h"

namespace muster::launcher {
namespace {

constexpr std::uint16_t kDefaultPort = 29500;

tl::unexpected<Error> usage(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  while (true) {
    const auto end = text.find(separator);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

Result<int> parse_nodes(std::string_view text) {
  const auto parts = split(text, ':');
  if (parts.size() > 2) return usage(fmt::format("--nnodes={} is not N", text));
  MUSTER_TRY(const std::int64_t min, parse_integer("--nnodes", parts.front(), 1, 1'000'000));
  MUSTER_TRY(const std::int64_t max, parse_integer("--nnodes", parts.back(), 1, 1'000'000));
  if (min > max) return usage(fmt::format("--nnodes={}: the smaller number comes first", text));
  if (min != max)
    return usage(
        fmt::format("--nnodes={}: a range needs dynamic rendezvous, which this version does not have; give "
                    "the number of nodes",
                    text));
  return static_cast<int>(max);
}

Result<std::vector<int>> parse_signals(std::string_view text) {
  std::vector<int> out;
  for (const std::string_view part : split(text, ',')) {
    const std::string_view name = trimmed(part);
    if (name.empty()) continue;
    const int number = signal_number(name);
    if (number == 0) return usage(fmt::format("--signals-to-handle={}: {} is not a signal", text, name));
    if (number == SIGKILL || number == SIGSTOP)
      return usage(fmt::format("--signals-to-handle={}: {} cannot be handled", text, name));
    out.push_back(number);
  }
  return out;
}

Result<Millis> parse_join_timeout(std::string_view conf) {
  Millis out = Job{}.join_timeout;
  if (trimmed(conf).empty()) return out;
  for (const std::string_view part : split(conf, ',')) {
    const auto equals = part.find('=');
    const std::string_view key = trimmed(part.substr(0, equals));
    const std::string_view value = equals == std::string_view::npos ? "" : trimmed(part.substr(equals + 1));
    if (key.empty() || value.empty())
      return usage(fmt::format("--rdzv-conf={}: '{}' is not key=value", conf, trimmed(part)));
    if (key != "timeout" && key != "join_timeout") continue;  // torchrun ignores unknown keys too
    MUSTER_TRY(const std::int64_t seconds, parse_integer("--rdzv-conf timeout", value, 1, 10'000'000));
    out = std::chrono::seconds(seconds);
  }
  return out;
}

Result<LogSettings> plan_logs(const Options& options, const Environment& environment) {
  LogSettings out;
  out.directory = options.log_dir;
  auto redirects = parse_std_map(options.redirects);
  if (!redirects) return fail("--redirects", std::move(redirects).error());
  auto tee = parse_std_map(options.tee);
  if (!tee) return fail("--tee", std::move(tee).error());
  out.redirects = *std::move(redirects);
  out.tee = *std::move(tee);
  if (!options.local_ranks_filter.empty())
    for (const std::string_view part : split(options.local_ranks_filter, ',')) {
      MUSTER_TRY(const std::int64_t rank, parse_integer("--local-ranks-filter", trimmed(part), 0, 65535));
      out.local_ranks_filter.push_back(static_cast<int>(rank));
    }
  if (options.log_line_prefix_template && !options.log_line_prefix_template->empty()) {
    out.prefix_template = *options.log_line_prefix_template;
  } else {
    out.prefix_template = lookup(environment, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
    if (out.prefix_template.empty()) out.prefix_template = "[${role_name}${local_rank}]:";
  }
  return out;
}

Result<Millis> plan_grace(const Options& options, const Environment& environment) {
  double seconds = 30;
  if (options.shutdown_timeout_s) {
    seconds = *options.shutdown_timeout_s;
  } else if (const auto text = lookup(environment, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
             text && !text->empty()) {
    MUSTER_TRY(const std::int64_t whole,
               parse_integer("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", *text, 0, 1'000'000));
    seconds = static_cast<double>(whole);
  }
  return Millis(std::llround(seconds * 1000));
}

/// Where the store is: standalone, or node 0's address and port.
Result<void> plan_rendezvous(const Options& options, const Machine& machine, Job& job) {
  const std::string_view backend = options.rdzv_backend;
  if (backend != "static" && backend != "c10d")
    return usage(fmt::format("--rdzv-backend={}: muster knows static (and c10d with one node)", backend));
  if (backend == "c10d" && job.nodes > 1 && !options.standalone)
    return usage(
        "--rdzv-backend=c10d with several nodes needs dynamic rendezvous, which this version does not have; "
        "use --nnodes, --node-rank, --master-addr and --master-port");
  if (options.standalone && job.nodes > 1)
    return usage(fmt::format("--standalone is for one node, but --nnodes={}", options.nnodes));
  MUSTER_TRY(const Endpoint endpoint, parse_endpoint(options.rdzv_endpoint));
  const bool placed = options.master_port.has_value() || !endpoint.host.empty();
  if (options.standalone || backend == "c10d" || (job.nodes == 1 && !placed)) {
    job.mode = RendezvousMode::kStandalone;
    job.master_addr = "127.0.0.1";
    job.master_port = 0;
    job.run_id = options.rdzv_id.value_or(machine.random_id());
    return {};
  }
  job.mode = RendezvousMode::kStatic;
  job.run_id = options.rdzv_id.value_or("none");
  job.master_addr = options.master_addr;
  int port = options.master_port.value_or(kDefaultPort);
  if (!endpoint.host.empty()) {
    if (endpoint.port < 0)
      return usage(fmt::format("--rdzv-endpoint={} needs a port: HOST:PORT", options.rdzv_endpoint));
    job.master_addr = endpoint.host;
    port = endpoint.port;
  }
  if (port == 0 && job.nodes > 1)
    return usage(
        "--master-port=0 lets the kernel choose, but the other nodes could not know the port; give a number");
  job.master_port = static_cast<std::uint16_t>(port);
  return {};
}

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view text) {
  const std::string_view all = trimmed(text);
  Endpoint out;
  if (all.empty()) return out;
  std::string_view rest;
  if (all.front() == '[') {
    const auto close = all.find(']');
    if (close == std::string_view::npos) return usage(fmt::format("--rdzv-endpoint={}: ] is missing", text));
    out.host = all.substr(1, close - 1);
    rest = all.substr(close + 1);
    if (!rest.empty() && rest.front() != ':')
      return usage(fmt::format("--rdzv-endpoint={} is not [HOST]:PORT", text));
    if (!rest.empty()) rest.remove_prefix(1);
  } else {
    const auto colon = all.rfind(':');
    out.host = all.substr(0, colon);
    if (colon != std::string_view::npos) rest = all.substr(colon + 1);
  }
  const bool named = !out.host.empty() && std::all_of(out.host.begin(), out.host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == ':' || c == '-';
  });
  if (!named) return usage(fmt::format("--rdzv-endpoint={}: the host is not a name or address", text));
  if (!rest.empty()) {
    MUSTER_TRY(const std::int64_t port, parse_integer("--rdzv-endpoint port", rest, 0, 65535));
    out.port = static_cast<int>(port);
  }
  return out;
}

Result<Job> plan_job(const Options& options, const Environment& environment, const Machine& machine) {
  Job job;
  MUSTER_TRY(job.nodes, parse_nodes(options.nnodes));
  job.node_rank = options.node_rank;
  if (job.node_rank >= job.nodes)
    return usage(fmt::format("--node-rank={} is out of range: with --nnodes={} it is 0 to {}", job.node_rank,
                             job.nodes, job.nodes - 1));
  MUSTER_OK(plan_rendezvous(options, machine, job));
  job.role = options.role;
  job.max_restarts = options.max_restarts;
  job.virtual_local_rank = options.virtual_local_rank;
  job.host = options.local_addr.empty() ? machine.host : options.local_addr;
  job.signals_text = options.signals_to_handle;
  MUSTER_TRY(job.signals, parse_signals(options.signals_to_handle));
  MUSTER_TRY(job.join_timeout, parse_join_timeout(options.rdzv_conf));
  MUSTER_TRY(job.grace, plan_grace(options, environment));
  MUSTER_TRY(job.logs, plan_logs(options, environment));
  MUSTER_TRY(job.command, resolve_program(options, environment));
  MUSTER_TRY(job.local_world_size,
             resolve_nproc(options.nproc_per_node, machine.gpu_count, machine.cpu_count));
  return job;
}

}  // namespace muster::launcher
