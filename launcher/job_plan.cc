// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_plan.h"

#include <algorithm>
#include <cmath>
#include <signal.h>

#include <fmt/format.h>

#include "launcher/nproc.h"
#include "launcher/program.h"
#include "launcher/rendezvous_plan.h"
#include "rendezvous/env_contract.h"

namespace muster::launcher {
namespace {

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

}  // namespace

Result<Job> plan_job(const Options& options, const Environment& environment, const Machine& machine) {
  Job job;
  job.role = options.role;
  job.max_restarts = options.max_restarts;
  job.virtual_local_rank = options.virtual_local_rank;
  job.host = options.local_addr.empty() ? machine.host : options.local_addr;
  job.signals_text = options.signals_to_handle;
  MUSTER_TRY(job.signals, parse_signals(options.signals_to_handle));
  MUSTER_TRY(job.grace, plan_grace(options, environment));
  MUSTER_OK(plan_rendezvous(options, environment, machine.random_id, job));
  MUSTER_TRY(job.logs, plan_logs(options, environment));
  MUSTER_TRY(job.command, resolve_program(options, environment));
  int chosen = 0;
  if (!options.gpus.empty()) {
    MUSTER_TRY(chosen, count_chosen(options));
  }
  const auto gpu_count = [&] { return chosen > 0 ? chosen : machine.gpu_count(); };
  MUSTER_TRY(job.local_world_size, resolve_nproc(options.nproc_per_node, gpu_count, machine.cpu_count));
  job.gpu_node = machine.gpu_driver;
  if (machine.core_count && job.local_world_size > 1 && !lookup(environment, env::kOmpNumThreads))
    job.threads = std::max(1, machine.core_count() / job.local_world_size);
  MUSTER_OK(plan_placement(options, environment, machine.hardware, job));
  return job;
}

}  // namespace muster::launcher
