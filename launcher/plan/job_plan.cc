// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/job_plan.h"

#include <algorithm>
#include <set>
#include <signal.h>

#include <fmt/format.h>

#include "launcher/hardware/device_choice.h"
#include "launcher/job/exit_status.h"
#include "launcher/job/supervision.h"
#include "launcher/job/worker_env.h"
#include "launcher/plan/rendezvous_plan.h"
#include "launcher/plan/slurm_plan.h"
#include "launcher/text/seconds_text.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/slurm_step.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace {

Result<void> read_bind(const Options& options, PlacementRequest& request) {
  if (!options.bind.empty() && !options.numa_binding.empty())
    return usage("--bind and --numa-binding say the same thing; give one of them");
  const bool torchrun = !options.numa_binding.empty();
  const std::string& text = torchrun ? options.numa_binding : options.bind;
  if (text.empty()) return {};
  request.bind_text = fmt::format("--{}={}", torchrun ? "numa-binding" : "bind", text);
  const auto bind = parse_bind(text, torchrun);
  if (!bind)
    return usage("{}: known are {}", request.bind_text,
                 torchrun ? "node, socket, exclusive, core-complex" : "none, numa, core, socket");
  request.bind = *bind;
  return {};
}

/// The devices in the order of their CUDA indices, and the variable that makes them so.
Result<std::vector<Device>> choose(const Options& options, const Environment& environment,
                                   const std::vector<Gpu>& gpus, Job& job) {
  const auto inherited = lookup(environment, env::kCudaVisible);
  if (options.gpus.empty()) return visible_devices(gpus, inherited);
  MUSTER_TRY(std::vector<Device> devices,
             chosen_devices(gpus, options.gpus, inherited, options.oversubscribe));
  const auto order = lookup(environment, env::kCudaOrder);
  const bool numbers = std::ranges::any_of(
      devices, [](const Device& device) { return device.entry.find('-') == std::string::npos; });
  if (numbers && order && *order != "PCI_BUS_ID")
    return usage(
        "--gpus={} counts by PCI address, as nvidia-smi does, but CUDA_DEVICE_ORDER={}; unset "
        "that, or give UUIDs (nvidia-smi -L)",
        options.gpus, *order);
  const int workers = job.local_world_size;
  if (workers > static_cast<int>(devices.size()) && !options.oversubscribe)
    return usage("--gpus={} names {} for {} workers; two ranks on one GPU need --oversubscribe", options.gpus,
                 counted(devices.size(), "GPU"), workers);
  const auto is_slice = [](const Device& device) { return device.entry.starts_with("MIG-"); };
  if (devices.size() > 1 && !job.virtual_local_rank && std::ranges::any_of(devices, is_slice))
    return usage(
        "--gpus={}: a CUDA program sees one MIG slice only; add --virtual-local-rank, so that "
        "each worker gets its own",
        options.gpus);
  for (const Device& device : devices)
    job.visible_devices += (job.visible_devices.empty() ? "" : ",") + device.entry;
  return devices;
}

std::string summary(const Topology& topology) {
  std::set<int> nodes;
  std::size_t cpus = 0;
  for (const Core& core : topology.cores) {
    nodes.insert(core.numa_node);
    cpus += core.cpus.size();
  }
  return fmt::format("{} with {} allowed, on {} of {}, {}{}", counted(topology.cores.size(), "core"),
                     counted(cpus, "CPU"), nodes.size(), counted(topology.numa_nodes, "NUMA node"),
                     counted(topology.sockets, "socket"),
                     topology.this_machine ? "" : " (described by hwloc's environment, not this machine)");
}

constexpr std::uint64_t kSmallestLog = 4096;  // a smaller one would be renaming, not writing

/// At commas; two of them are one in the text, as in torchrun.
std::vector<std::string> parse_filters(const std::optional<std::string>& text) {
  std::vector<std::string> out;
  if (!text) return out;
  out.emplace_back();
  for (std::size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == ',' && text->substr(i, 2) != ",,") {
      out.emplace_back();
      continue;
    }
    out.back().push_back(c);
    if (c == ',') ++i;
  }
  return out;
}

Result<std::vector<int>> parse_signals(std::string_view text) {
  std::vector<int> out;
  for (const std::string_view part : split(text, ',')) {
    const std::string_view name = trimmed(part);
    if (name.empty()) continue;
    const int number = signal_number(name);
    if (number == 0) return usage("--signals-to-handle={}: {} is not a signal", text, name);
    if (number == SIGKILL || number == SIGSTOP)
      return usage("--signals-to-handle={}: {} cannot be handled", text, name);
    out.push_back(number);
  }
  return out;
}

Result<std::vector<int>> parse_ranks(std::string_view option, std::string_view text, int most) {
  auto out = parse_ranges(text, most);
  if (!out)
    return usage("{}={}: not a list of up to 65,536 ranks from 0 to {}, as in 0-3,8", option, text, most);
  return *std::move(out);
}

Result<View> parse_view(std::string_view text) {
  if (text == "all") return View::kAll;
  if (text == "rank0") return View::kRank0;
  if (text == "fold") return View::kFold;
  return usage("--view={}: not one of all, rank0, fold", text);
}

/// 500000, 64K, 100M, 2G, as multiples of 1024; KiB and KB are the same.
Result<std::uint64_t> parse_size(std::string_view option, std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view unit = text.substr(digits, 1), rest = text.substr(digits + unit.size());
  const std::size_t power = unit.empty() ? 0 : std::string_view("kKmMgGtT").find(unit) / 2 + 1;
  if (power > 4 || !(rest.empty() || rest == "B" || rest == "iB"))
    return usage("{}={}: not a number of bytes, as in 500000, 64K, 100M or 2G", option, text);
  MUSTER_TRY(const std::int64_t number,
             parse_integer(option, text.substr(0, digits), 0, (std::int64_t{1} << 60) >> (10 * power)));
  return static_cast<std::uint64_t>(number) << (10 * power);
}

Result<Rotation> plan_rotation(const Options& options, const LogSettings& logs) {
  Rotation out;
  MUSTER_TRY(const std::int64_t keep, parse_integer("--log-keep", options.log_keep, 1, 9999));
  out.keep = static_cast<int>(keep);
  if (options.log_max_size.empty()) {
    if (options.given.contains("log-keep"))
      return usage("--log-keep={}: log files are rotated with --log-max-size only", options.log_keep);
    return out;
  }
  MUSTER_TRY(out.max_bytes, parse_size("--log-max-size", options.log_max_size));
  if (out.max_bytes != 0 && out.max_bytes < kSmallestLog)
    return usage("--log-max-size={}: less than {} bytes", options.log_max_size, kSmallestLog);
  if (out.max_bytes != 0 && logs.redirects.none() && logs.tee.none())
    return usage(
        "--log-max-size={}: no log file is written; -r 3 or -t 3 writes them, and so does "
        "--log-dir with --view=rank0 or fold",
        options.log_max_size);
  return out;
}

Result<LogSettings> plan_logs(const Options& options, const Environment& environment) {
  LogSettings out;
  out.directory = options.log_dir;
  auto redirects = parse_stream_selection(options.redirects);
  if (!redirects) return fail("--redirects", std::move(redirects).error());
  auto tee = parse_stream_selection(options.tee);
  if (!tee) return fail("--tee", std::move(tee).error());
  out.redirects = *std::move(redirects);
  out.tee = *std::move(tee);
  MUSTER_TRY(out.local_ranks_filter, parse_ranks("--local-ranks-filter", options.local_ranks_filter, 65'535));
  MUSTER_TRY(out.ranks_filter, parse_ranks("--ranks-filter", options.ranks_filter, 100'000'000));
  MUSTER_TRY(out.view, parse_view(options.view));
  // Who looks at a part only has the whole in files, if they are to be kept at all.
  if (out.view != View::kAll && options.log_dir && out.redirects.none() && out.tee.none())
    out.tee.others = Std::kBoth;
  out.stdout_filters = parse_filters(options.duplicate_stdout_filters);
  out.stderr_filters = parse_filters(options.duplicate_stderr_filters);
  if (out.directory == "/dev/null" && !(out.stdout_filters.empty() && out.stderr_filters.empty()))
    return usage(
        "--duplicate-*-filters: with --log-dir=/dev/null there is no directory for the filtered lines");
  MUSTER_TRY(out.rotation, plan_rotation(options, out));
  if (options.log_line_prefix_template && !options.log_line_prefix_template->empty()) {
    out.prefix_template = *options.log_line_prefix_template;
  } else {
    out.prefix_template = lookup(environment, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
    if (out.prefix_template.empty()) out.prefix_template = kDefaultPrefix;
  }
  return out;
}

constexpr std::int64_t kMaxEndTime = 100'000'000'000;  // seconds since the epoch: the year 5138

Result<Millis> plan_grace(const Options& options, const Environment& environment, bool slurm) {
  double seconds = slurm ? std::chrono::duration<double>(kSlurmGrace).count() : 30;
  if (options.shutdown_timeout_s) {
    seconds = *options.shutdown_timeout_s;
  } else if (const auto text = lookup(environment, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
             text && !text->empty()) {
    MUSTER_TRY(const std::int64_t whole,
               parse_integer("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", *text, 0, 1'000'000));
    seconds = static_cast<double>(whole);
  }
  return to_millis(seconds);
}

/// Which of these local ranks this node does not have, as a warning. On another node they may be.
std::string absent_ranks(std::string_view option, std::vector<int> ranks, int workers) {
  std::erase_if(ranks, [workers](int rank) { return rank < workers; });
  if (ranks.empty()) return {};
  return fmt::format("--{} names {}, but the {} of this node have local ranks 0 to {}", option,
                     numbered("local rank", std::move(ranks)), counted(workers, "worker"), workers - 1);
}

std::vector<int> ranks_of(const StreamSelection& streams) {
  std::vector<int> out;
  out.reserve(streams.by_rank.size());
  for (const auto& [rank, which] : streams.by_rank) out.push_back(rank);
  return out;
}

/// Nothing outside of a step.
Result<std::optional<SlurmStep>> read_step(const Environment& environment) {
  auto step = read_slurm_step(environment);
  if (step) return step;
  Error error = std::move(step).error();
  error.message += "; --no-slurm leaves Slurm's variables aside";
  return fail(std::move(error));
}

void add_warning(Job& job, std::string text) {
  if (!text.empty()) job.warnings.push_back(std::move(text));
}

/// Two ranks on one GPU are for who asks for it. Where each worker is given its GPU this is decided here;
/// else by the program, which may need none, and torchrun's users start more workers than there are GPUs.
Result<void> look_for_shortage(const Options& options, const Environment& environment, const Machine& machine,
                               Job& job) {
  const auto visible = lookup(environment, env::kCudaVisible);
  const int workers = job.local_world_size;
  if (workers == 1 || (!job.virtual_local_rank && !job.gpu_node)) return {};
  const int listed = job.virtual_local_rank || !machine.listed_gpus ? 0 : machine.listed_gpus();
  if (!job.virtual_local_rank && !may_be_short(visible, listed, workers)) return {};
  std::vector<Gpu> gpus;
  if (job.gpu_node && machine.hardware)
    if (auto hardware = machine.hardware()) gpus = std::move(hardware->gpus);
  const std::string shortage = device_shortage(gpus, visible, workers);
  if (shortage.empty()) return {};
  if (!job.virtual_local_rank) {
    job.gpu_shortage = shortage;
    return {};
  }
  if (options.oversubscribe) return {};
  return usage("--virtual-local-rank: {}; lower --nproc-per-node, or share GPUs with --oversubscribe",
               shortage);
}

/// Which failures are tried again. What would never happen is refused.
Result<void> plan_restarts(const Options& options, Job& job) {
  RestartRules& rules = job.restarts;
  MUSTER_TRY(rules.only, FailureRules::parse("--restart-on", options.restart_on));
  MUSTER_TRY(rules.never, FailureRules::parse("--no-restart-on", options.no_restart_on));
  if (!rules.only.empty() && job.max_restarts == 0)
    return usage("{}: nothing is restarted without --max-restarts", rules.only.text());
  const bool asked = rules.only.names_class(CauseClass::kHang);
  if (asked && job.hang.action != OnHang::kRestart) {
    if (options.given.contains("on-hang"))
      return usage("{} and --on-hang={} contradict each other: the one restarts after a hang",
                   rules.only.text(), options.on_hang);
    job.hang.action = OnHang::kRestart;
  }
  rules.after_hang = job.hang.action == OnHang::kRestart;
  if (rules.after_hang && !rules.only.empty() && !asked)
    return usage("{} does not name hang, which --on-hang=restart asks for", rules.only.text());
  if (rules.after_hang && rules.never.names_class(CauseClass::kHang))
    return usage("{} names hang, after which {} restarts", rules.never.text(),
                 asked ? rules.only.text() : "--on-hang=restart");
  rules.exhausted_code = options.exhausted_exit_code;
  if (rules.exhausted_code && job.max_restarts == 0)
    return usage("--exhausted-exit-code={}: nothing is restarted without --max-restarts",
                 *rules.exhausted_code);
  if (rules.exhausted_code == kExitPreempted)
    return usage("--exhausted-exit-code={}: that is what a preempted job ends with", *rules.exhausted_code);
  rules.max_without_progress = options.max_restarts_without_progress;
  return {};
}

/// How many workers a node gets. `text`: a number, "auto", "gpu" or "cpu"; nothing: one per GPU, else 1,
/// where torchrun's default is 1. The counts are asked for only when needed. Source: torch/distributed/run.py
/// (determine_local_world_size).
Result<int> resolve_nproc(const std::optional<std::string>& text, const std::function<int()>& gpu_count,
                          const std::function<int()>& cpu_count) {
  if (!text) return std::max(1, gpu_count());
  if (*text == "cpu") return cpu_count();
  if (*text == "auto" || *text == "gpu") {
    if (const int gpus = gpu_count(); gpus > 0) return gpus;
    if (*text == "auto") return cpu_count();
    return usage(
        "--nproc-per-node=gpu: this node has no GPU that the NVIDIA driver or CUDA_VISIBLE_DEVICES shows; "
        "use auto, cpu or a number");
  }
  const auto workers = parse_integer("", *text, 1, 65536);
  if (!workers)
    return usage("--nproc-per-node={} is neither a number from 1 to 65536 nor auto, gpu or cpu", *text);
  return static_cast<int>(*workers);
}

}  // namespace

Result<Hardware> read_hardware(const Environment& environment) {
  Hardware out;
  MUSTER_TRY(out.topology, read_topology(current_affinity()));
  out.gpus = find_gpus(gpu_paths(environment));
  if (out.topology.this_machine) out.cpu_quota = cpu_quota({});
  return out;
}

Result<void> plan_placement(const Options& options, const Environment& environment,
                            const std::function<Result<Hardware>()>& hardware, Job& job) {
  PlacementRequest request;
  MUSTER_OK(read_bind(options, request));
  request.ranks = job.local_world_size;
  request.oversubscribe = options.oversubscribe;
  request.one_device_each = job.virtual_local_rank;
  const bool asked = !options.gpus.empty() || request.bind != Bind::kNone;
  const bool share = options.oversubscribe && job.virtual_local_rank;  // each is given its GPU, in turn
  if (!asked && !share && !options.report_bindings && !options.dry_run) return {};

  auto node = hardware();
  if (!node) {
    if (asked) return fail(std::move(node).error());
    job.hardware = node.error().message;  // to be shown is all that was asked for
    return {};
  }
  if (!node->topology.this_machine && request.bind != Bind::kNone && !options.dry_run)
    return usage(
        "{}: HWLOC_XMLFILE or HWLOC_SYNTHETIC describes another machine, on which nothing can be "
        "bound; unset it, or plan with --dry-run",
        request.bind_text);
  request.cpu_quota = node->cpu_quota;
  MUSTER_TRY(const std::vector<Device> devices, choose(options, environment, node->gpus, job));
  MUSTER_TRY(job.placement, place_ranks(node->topology, node->gpus, devices, request));
  job.hardware = summary(node->topology);
  return {};
}

Result<Job> plan_job(const Options& given, const Environment& environment, const Machine& machine) {
  std::optional<SlurmStep> step;
  std::optional<SlurmAllocation> allocation;
  if (!given.standalone && !given.no_slurm) {
    allocation = read_slurm_allocation(environment);
    MUSTER_TRY(step, read_step(environment));
  }
  Options options = given;
  if (step) {
    MUSTER_TRY(options, join_step(std::move(options), *step));
  }
  const std::string& here = step ? step->node_name() : machine.host;

  if (!options.job_name.empty() && !options.detach)
    return usage("--job-name={}: names a job that runs without this terminal; give --detach",
                 options.job_name);

  Job job;
  if (allocation && !step && !options.given.contains("nnodes"))
    add_warning(job, idle_nodes_warning(*allocation, options));
  job.role = options.role;
  job.max_restarts = options.max_restarts;
  job.virtual_local_rank = options.virtual_local_rank;
  job.host = options.local_addr.empty() ? here : options.local_addr;
  job.signals_text = options.signals_to_handle;
  job.lineage = std::string(lookup(environment, env::kLineage).value_or(""));
  if (!job.lineage.empty()) job.lineage += ':';
  job.lineage += machine.random_id();
  MUSTER_TRY(job.restarts.pause, RestartPause::parse(options.restart_backoff));
  MUSTER_TRY(job.signals, parse_signals(options.signals_to_handle));
  MUSTER_TRY(job.grace, plan_grace(options, environment, step.has_value()));
  if (step)
    job.end_time_s =
        parse_integer("", lookup(environment, "SLURM_JOB_END_TIME").value_or(""), 0, kMaxEndTime).value_or(0);
  MUSTER_TRY(job.hang, HangRules::parse(options.hang_timeout, options.on_hang));
  MUSTER_OK(plan_restarts(options, job));
  MUSTER_OK(plan_rendezvous(options, environment, machine.random_id, job));
  if (options.join_at != "now" && job.mode != RendezvousMode::kElastic)
    return usage("--join-at={}: a job grows with --nnodes=MIN:MAX and --rdzv-backend=c10d, muster or etcd",
                 options.join_at);
  MUSTER_TRY(job.logs, plan_logs(options, environment));
  job.logs.hostname = machine.host.substr(0, machine.host.find('.'));
  if (auto command = resolve_program(options, environment)) {
    job.command = *std::move(command);
  } else if (const Error& error = command.error();
             job.one_node() || options.dry_run || error.code == ErrorCode::kInvalidArgument) {
    return fail(error);
  } else {  // the others would wait for this node
    job.command.title = options.program;
    job.unhealthy = "cannot run the program: " + error.message;
    job.unhealthy_code = error.code == ErrorCode::kNotFound ? kExitNotFound : kExitNotExecutable;
  }
  int chosen = 0;
  if (!options.gpus.empty()) {
    MUSTER_TRY(const auto entries, split_gpu_list(options.gpus));
    chosen = static_cast<int>(entries.size());
  }
  const auto gpu_count = [&] { return chosen > 0 ? chosen : machine.gpu_count(); };
  MUSTER_TRY(job.local_world_size, resolve_nproc(options.nproc_per_node, gpu_count, machine.cpu_count));
  const int workers = job.local_world_size;
  add_warning(job, absent_ranks("local-ranks-filter", job.logs.local_ranks_filter, workers));
  add_warning(job, absent_ranks("redirects", ranks_of(job.logs.redirects), workers));
  add_warning(job, absent_ranks("tee", ranks_of(job.logs.tee), workers));
  job.gpu_node = machine.gpu_driver;
  const CpuBudget budget = machine.cpu_budget ? machine.cpu_budget() : CpuBudget{};
  job.cpu_quota_limited = budget.quota_limits();
  if (!options.oversubscribe)
    add_warning(job, cpu_shortage(budget, job.local_world_size, step || allocation));
  if (machine.core_count && (job.local_world_size > 1 || job.cpu_quota_limited) &&
      !lookup(environment, env::kOmpNumThreads)) {
    const int cores = machine.core_count();
    job.threads =
        std::max(1, (budget.quota > 0 ? std::min(cores, budget.quota) : cores) / job.local_world_size);
  }
  if (options.gpus.empty()) MUSTER_OK(look_for_shortage(options, environment, machine, job));
  MUSTER_OK(plan_placement(options, environment, machine.hardware, job));
  MUSTER_OK(check_visible_devices(environment, job));
  return job;
}

}  // namespace muster::launcher
