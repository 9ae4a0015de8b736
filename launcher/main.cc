// SPDX-License-Identifier: Apache-2.0
// muster: reads the command line, and does what it asks for: to run a job (Launch), to become a worker
// (--exec), to start itself on each node (--srun), or to print.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <optional>
#include <signal.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/system/system_error.hpp>
#include <fmt/format.h>

#include "launcher/agent/agent.h"
#include "launcher/checks/preflight.h"
#include "launcher/cli/options.h"
#include "launcher/doctor/doctor_node.h"
#include "launcher/hardware/cores.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/small_files.h"
#include "launcher/network/interfaces.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/output_sink.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/slurm_plan.h"
#include "launcher/process/cgroup.h"
#include "launcher/process/descendants.h"
#include "launcher/process/detach.h"
#include "launcher/process/guardian.h"
#include "launcher/report/gpu_metrics.h"
#include "launcher/report/gpu_watch.h"
#include "launcher/telemetry/status_exchange.h"
#include "launcher/telemetry/status_page.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"

namespace {

using namespace muster;
using namespace muster::launcher;

constexpr std::string_view kVersion = MUSTER_VERSION;
constexpr std::chrono::seconds kLastLookTimeout{1};  // for those who watch the page to get the end
constexpr std::chrono::seconds kFlushTimeout{10};    // between two reads of our output, once all is over

// Without persistence mode the driver takes more than a second per GPU to start.
constexpr std::chrono::seconds kQuickTimeout{10};
constexpr std::chrono::seconds kFullTimeout{30};
constexpr std::chrono::seconds kDeviceTimeout{60};  // CUDA and NCCL take some seconds to start with 8 GPUs

/// Descriptors 0 to 2 must exist, or a pipe of ours would become some worker's stderr.
void open_standard_descriptors() {
  int fd = 0;
  // The workers inherit them.
  while (fd >= 0 && fd <= 2) fd = ::open("/dev/null", O_RDWR);  // NOLINT(android-cloexec-open)
  if (fd > 2) ::close(fd);
}

/// What the event loop asks of the kernel and does not get (descriptors, memory) comes as an exception that
/// nobody can go on from. muster says so in a line and is gone with 71, as if it were killed: the guardian
/// ends the workers. Any other exception is a fault of muster's and dumps core.
[[noreturn]] void end_on_exception() noexcept {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const boost::system::system_error& error) {
    const bool threads = error.code() == boost::system::errc::resource_unavailable_try_again;
    std::fprintf(stderr, "muster: muster cannot go on: the system refused a resource: %s; see ulimit %s\n",
                 error.what(), threads ? "-u, and pids.max of its control group" : "-n");
    ::_exit(kExitSystem);
  } catch (...) {  // the core dump tells more
  }
  std::abort();
}

std::string random_uuid() {
  constexpr std::size_t kLength = 36;  // and a line end
  const auto text = read_file("/proc/sys/kernel/random/uuid", 64);
  return text ? text->substr(0, kLength) : fmt::format("pid-{}", ::getpid());
}

int complain(const Error& error) {
  std::fprintf(stderr, "muster: %s\n", error.message.c_str());
  if (error.code == ErrorCode::kNotFound) return kExitNotFound;
  if (error.code == ErrorCode::kUnsupported) return kExitNotExecutable;
  return error.code == ErrorCode::kInvalidArgument ? kExitUsage : kExitSystem;
}

/// What was asked for is there in whole, or its lack is no success.
int print(const std::string& text) {
  const auto written = write_all(STDOUT_FILENO, text);
  return written ? kExitOk : complain({ErrorCode::kIo, "stdout: " + written.error().message});
}

/// A pidfd and a stderr pipe per worker. Workers get the old limit back: a raised one breaks programs that
/// use select(2).
std::optional<rlimit> make_room_for_descriptors(int workers) {
  rlimit limit{};
  const rlim_t needed = static_cast<rlim_t>(workers) * 8 + 256;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return std::nullopt;
  raise_descriptor_limit();
  return limit;
}

bool wants_preflight(const Options& options) {
  return options.preflight != "off";
}

/// --preflight: prints what is wrong with this node. Returns why the node takes no part; empty: it does.
/// `driver_error`: the driver does not answer, and is not asked again.
std::string check_node(const Options& options, const Job& job, const Environment& environment,
                       const std::optional<Finding>& driver_error) {
  if (!wants_preflight(options)) return {};
  const bool full = options.preflight == "full";
  const PreflightJob check = plan_preflight(job, options.oversubscribe, environment);
  auto findings =
      driver_error ? std::vector{*driver_error} : run_preflight(check, full ? kFullTimeout : kQuickTimeout);
  // A device that is broken already is not asked to compute.
  if (full && errors_text(findings).empty()) {
    const DeviceReport report = check_devices(check, environment, kDeviceTimeout);
    if (!report.speeds.empty())
      std::fprintf(stderr, "muster: preflight of %s: %s\n", job.host.c_str(), report.speeds.c_str());
    findings.insert(findings.end(), report.findings.begin(), report.findings.end());
  }
  for (const Finding& finding : findings)
    std::fprintf(stderr, "muster: preflight of %s: %s%s\n", job.host.c_str(),
                 finding.error || finding.note ? "" : "warning: ", finding.text.c_str());
  std::string out = errors_text(findings);
  if (!out.empty())
    std::fprintf(stderr, "muster: %s is unhealthy and does not take part\n", job.host.c_str());
  return out;
}

CgroupMode cgroup_mode_of(const Options& options) {
  if (options.cgroup == "required") return CgroupMode::kRequired;
  return options.cgroup == "off" ? CgroupMode::kOff : CgroupMode::kAuto;
}

/// What the command line and the environment say, and which program this is.
struct Invocation {
  Instant begun;
  std::vector<std::string> command;
  std::string own_path;
  Environment environment;
  Options options;
};

/// One job on this node, from its plan to its exit status. Its members are what the job needs around its
/// agent, in the order in which they are made: the guardian ends after all that it guards.
class Launch {
 public:
  explicit Launch(Invocation invocation)
      : invocation_(std::move(invocation)),
        options_(invocation_.options),
        environment_(invocation_.environment),
        log_("muster", parse_log_level(lookup(environment_, "LOGLEVEL").value_or("WARNING")),
             [this](std::string_view line) { write_log_(line); }) {}

  int run() {
    using Step = std::optional<int> (Launch::*)();
    // Each returns the exit status where muster ends with it.
    for (const Step step : {&Launch::plan, &Launch::check, &Launch::answer_dry_run, &Launch::leave_terminal,
                            &Launch::start_helpers})
      if (const auto status = (this->*step)()) return *status;
    return run_job();
  }

 private:
  /// From options, environment and machine to a Job. --doctor replaces the program by one of its own, and the
  /// driver is asked once before the plan asks it for GPUs: one that does not answer would hold muster for
  /// ever.
  std::optional<int> plan() {
    if (options_.doctor) {
      options_ = doctor_options(options_, invocation_.own_path);
      auto opened = DoctorVerdict::open();
      if (!opened) return complain(opened.error());
      doctor_.emplace(*std::move(opened));
    }
    if (wants_preflight(options_)) driver_ = check_driver(gpu_paths(environment_), kQuickTimeout);
    Environment asked = environment_;
    // The plan would wait for it: it is made without.
    if (driver_.finding) asked.insert_or_assign("MUSTER_NVML_LIBRARY", "/dev/null");
    const Machine machine{[&] { return count_gpus(asked); },
                          count_cpus,
                          random_uuid,
                          boost::asio::ip::host_name(),
                          [&] { return read_hardware(asked); },
                          [] { return count_cores(); },
                          has_gpu_driver(gpu_paths(environment_)),
                          [] { return static_cast<int>(list_directory(GpuPaths().proc_gpus).size()); },
                          [] { return read_cpu_budget(); }};
    auto planned = plan_job(options_, environment_, machine);
    if (!planned) {
      const int status = complain(with_source(planned.error(), options_));
      if (!driver_.finding) return status;
      std::fprintf(stderr, "muster: preflight: %s\n", driver_.finding->text.c_str());
      return kExitPreflight;
    }
    job_ = *std::move(planned);
    if (!options_.metrics_addr.empty())
      if (const auto secret = auth::find_secret(options_.secret_file, environment_); secret && *secret)
        page_token_ = net::page_token(**secret, job_->run_id);
    environment_.erase(std::string(env::kSecret));  // no program that is started from here gets it
    if (doctor_) doctor_->instruct(options_, *job_);
    if (options_.dry_run)
      for (const std::string& text : job_->warnings) std::fprintf(stderr, "muster: %s\n", text.c_str());
    planned_ = SteadyClock::now();
    return std::nullopt;
  }

  /// Who may watch the job, and whether this node can take part.
  std::optional<int> check() {
    // Of one node too: workers are told to use it.
    if (!options_.dry_run && !options_.iface.empty() &&
        offered_addresses(interface_addresses(), {{}, options_.iface, {}}).empty())
      return complain({ErrorCode::kInvalidArgument,
                       fmt::format("--iface={}: this host has no such interface with an address; `ip -br "
                                   "address` lists them",
                                   options_.iface)});
    job_->compare_clocks = wants_preflight(options_);
    if (const auto opened = options_.dry_run ? Result<void>() : open_observers(); !opened) {
      const int status = complain(opened.error());
      return is_address_in_use(opened.error()) ? kExitPortInUse : status;
    }
    if (job_->unhealthy.empty())
      job_->unhealthy = check_node(options_, *job_, environment_, driver_.finding);
    else
      std::fprintf(stderr, "muster: %s %s; telling the other nodes\n", job_->host.c_str(),
                   job_->unhealthy.c_str());
    driver_.process.reset();
    checked_ = SteadyClock::now();
    if (job_->unhealthy.empty() || !(options_.dry_run || job_->one_node())) return std::nullopt;
    ::signal(SIGPIPE, SIG_IGN);  // the events' reader may have gone
    begin_telemetry();
    return ended(kExitPreflight);
  }

  /// --dry-run prints what would be started, and starts nothing.
  std::optional<int> answer_dry_run() {
    if (!options_.dry_run) return std::nullopt;
    return print(plan_of_cgroups(cgroup_mode_of(options_)) + dry_run_text(*job_, environment_));
  }

  /// Up to here an error is on the terminal. With --detach the job goes on in another process from here on:
  /// no thread and no helper may have been started before.
  std::optional<int> leave_terminal() {
    // torchrun's default, which is right for agents on one host only.
    if (job_->elastic.ranks_given && is_loopback(job_->master_addr) && options_.rdzv_endpoint.empty() &&
        !options_.given.contains("master-addr"))
      std::fprintf(stderr,
                   "muster: --nnodes=%s without --master-addr: each node looks for node 0 at %s, on its own "
                   "host; give --master-addr=HOST of node 0\n",
                   options_.nnodes.c_str(), job_->master_addr.c_str());
    if (options_.report_bindings) std::fputs(placement_table(*job_).c_str(), stderr);

    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);  // a log that has reached ulimit -f is no reason to end a job
    if (!options_.detach) return std::nullopt;
    auto side = detach(*job_, options_.job_name, invocation_.command, environment_);
    if (!side) return complain(side.error());
    if (const int* exit_status = std::get_if<int>(&*side)) return *exit_status;
    detached_ = std::get<DetachedJob>(*std::move(side));
    if (listener_) detached_->serves_page(listener_->address, page_token_);
    return std::nullopt;
  }

  /// What outlives the agent or watches beside it. Descendants come first: children of before are not this
  /// job's.
  std::optional<int> start_helpers() {
    begin_telemetry();
    descendants_.emplace(job_->token());
    auto guardian = Guardian::start(static_cast<std::size_t>(job_->local_world_size), job_->token());
    if (!guardian) return ended(complain(guardian.error()));
    guardian_.emplace(*std::move(guardian));
    descendants_->spare(guardian_->pid());
    if (!job_->unhealthy.empty()) return std::nullopt;  // no worker is started
    if (const auto opened = cgroups_.open(cgroup_mode_of(options_), job_->token(), *guardian_); !opened)
      return ended(complain(opened.error()));
    if (!job_->gpu_node) return std::nullopt;
    auto gpu_watch = GpuWatch::start(gpu_paths(environment_));
    if (!gpu_watch) return ended(complain(gpu_watch.error()));
    descendants_->spare(gpu_watch_.emplace(*std::move(gpu_watch)).pid());
    return std::nullopt;
  }

  /// The loop, and what needs it. All of the output is flushed before the exit status is returned, and its
  /// loss is said.
  int run_job() {
    const auto descriptor_limit = make_room_for_descriptors(job_->local_world_size);
    boost::asio::io_context io(1);
    std::unique_ptr<LogWriter> log_writer;
    if (job_->logs.rotation.max_bytes > 0) {
      auto started = LogWriter::start(io, job_->logs.rotation);
      if (!started) return ended(complain(started.error()));
      log_writer = *std::move(started);
      descendants_->spare(log_writer->pid());
    }
    OutputSink out(io, STDOUT_FILENO);
    OutputSink err(io, STDERR_FILENO);
    write_log_ = [&err](std::string_view line) { err.write_lines(line); };
    out.when_failing([this](int error) {
      log_.warning(fmt::format("stdout: {}; output that does not go to files is lost", errno_text(error)));
    });
    for (const std::string& text : job_->warnings) log_.warning(text);
    if (!job_->gpu_shortage.empty())
      log_.warning(fmt::format("{}; a worker that uses the GPU of its LOCAL_RANK will fail, or share one",
                               job_->gpu_shortage));
    if (cgroups_.enabled())
      log_.info(fmt::format("the workers' control groups are in {}", cgroups_.directory()));
    else if (!cgroups_.reason().empty())
      log_.info(fmt::format("the workers have no control groups: {}", cgroups_.reason()));
    int status = kExitSystem;
    {
      Telemetry& telemetry = *telemetry_;
      const Instant now = SteadyClock::now();
      telemetry.phase("plan", seconds_between(invocation_.begun, planned_));
      telemetry.phase("preflight", seconds_between(planned_, checked_));
      telemetry.phase("prepare", seconds_between(checked_, now));
      StatusExchange exchange(io, *job_, telemetry);
      std::optional<StatusPage> page;
      if (listener_)
        page.emplace(io, *std::move(listener_), *job_, telemetry, exchange, kVersion, page_token_);
      const auto read_gpus = [&] {
        return gpu_readings(*gpu_watch_, *job_, environment_, telemetry.status().assignment);
      };
      if (page && gpu_watch_) {
        page->add_metrics(
            [&](MetricsText& text) { put_gpu_metrics(text, read_gpus(), job_->host, job_->run_id); });
        exchange.set_gpu_readings([&] { return read_gpus().gpus; });
      }
      status = run_agent({io, *job_, environment_, log_, *guardian_, cgroups_, *descendants_, out, err,
                          telemetry, exchange, descriptor_limit, log_writer.get(),
                          detached_ ? &*detached_ : nullptr, gpu_watch_ ? &*gpu_watch_ : nullptr});
      exchange.set_send(nullptr);
      if (page) page->finish(kLastLookTimeout);
    }
    if (events_) events_->finish(log_);
    if (detached_) detached_->ended(status, log_);
    const std::size_t lost_out = out.flush(kFlushTimeout);
    if (lost_out > 0)
      log_.warning(
          fmt::format("stdout was not read: the last {} bytes of the workers' output are lost", lost_out));
    (void)err.flush(kFlushTimeout);        // nobody could be told what it did not take
    write_log_ = [](std::string_view) {};  // what the loop destroys may log
    return doctor_ ? doctor_->status_after(status) : status;
  }

  /// --events and --metrics-addr, before anything is started: what cannot be had is an error at once.
  Result<void> open_observers() {
    if (!options_.events.empty()) {
      MUSTER_TRY(events_, EventLog::open(options_.events, job_->host));
    }
    if (options_.metrics_addr.empty() && options_.detach) open_own_page();
    if (options_.metrics_addr.empty()) return {};
    MUSTER_TRY(listener_, net::open_status_listener("--metrics-addr", options_.metrics_addr));
    const std::string& address = job_->status_address = listener_->address;
    // Print the address only when the kernel chose the port, or nobody could make the token.
    if (const auto asked = net::parse_status_address(options_.metrics_addr); asked && asked->port == 0)
      std::fprintf(stderr, "muster: metrics at http://%s/metrics\n", address.c_str());
    if (job_->node_rank == 0)
      std::fprintf(stderr, "muster: status page at http://%s/%s%s%s\n", address.c_str(),
                   page_token_.empty() ? "" : "?token=", page_token_.c_str(),
                   job_->nodes > 1 && !options_.node_rank ? " if this becomes node 0" : "");
    return {};
  }

  /// For musterctl on this host, which finds address and token in the job's record: other users of the host
  /// see nothing. The job goes on without it.
  void open_own_page() {
    page_token_ = auth::random_secret_text();
    if (auto opened = net::open_status_listener("--detach", "127.0.0.1:0"))
      listener_.emplace(*std::move(opened));
  }

  /// Whoever follows the events or the detached job's record sees its end.
  int ended(int status) {
    if (detached_) detached_->ended(status, log_);
    telemetry_->ended(status);
    return status;
  }

  void begin_telemetry() {
    telemetry_.emplace(*job_, log_, events_ ? &*events_ : nullptr);
    telemetry_->started(kVersion);
    if (wants_preflight(options_)) telemetry_->preflight(options_.preflight, job_->unhealthy);
  }

  Invocation invocation_;
  Options& options_;
  Environment& environment_;
  std::function<void(std::string_view)> write_log_ = [](std::string_view line) {
    (void)write_all(STDERR_FILENO, line);
  };
  const Log log_;
  Instant planned_{}, checked_{};
  std::optional<DoctorVerdict> doctor_;
  DriverCheck driver_;
  std::optional<Job> job_;
  std::optional<EventLog> events_;         // what tells others of the job while it runs
  std::optional<net::Listener> listener_;  // likewise
  std::string page_token_;                 // of the status page; empty: it is open
  std::optional<DetachedJob> detached_;
  std::optional<Telemetry> telemetry_;
  std::optional<Descendants> descendants_;
  std::optional<Guardian> guardian_;
  WorkerCgroups cgroups_;
  std::optional<GpuWatch> gpu_watch_;
};

/// --exec: this process becomes the worker. Returns only where that fails.
int run_exec(const Invocation& invocation) {
  if (invocation.options.doctor)
    return complain(
        {ErrorCode::kInvalidArgument, "--exec starts no agent, which --doctor needs on each node"});
  const auto plan = plan_exec(invocation.options, invocation.environment, count_cpus);
  return complain(plan ? execute(*plan) : with_source(plan.error(), invocation.options));
}

/// --srun: this process becomes srun, which starts muster on each node. Likewise.
int run_srun(const Invocation& invocation) {
  const auto plan = plan_srun(invocation.options, invocation.environment, invocation.own_path);
  if (plan && invocation.options.dry_run) return print(srun_plan_text(*plan));
  return complain(plan ? execute(*plan) : with_source(plan.error(), invocation.options));
}

}  // namespace

int main(int argc, char** argv) {
  Invocation invocation;
  invocation.begun = SteadyClock::now();
  open_standard_descriptors();
  std::set_terminate(end_on_exception);
  invocation.command.assign(argv, argv + argc);
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  invocation.environment = current_environment();
  wipe_variable(env::kSecret);
  if (is_doctor_node(arguments)) return run_doctor_node(arguments, invocation.environment);
  auto options = parse_options(arguments, invocation.environment);
  if (!options) return complain(options.error());
  if (options->help) return print(help_text());
  if (options->help_all) return print(full_help_text());
  if (options->version) return print(fmt::format("muster {}\n", kVersion));
  if (options->print_completion) {
    const auto script = completion_script(*options->print_completion);
    return script ? print(*script) : complain(script.error());
  }
  invocation.options = *std::move(options);
  std::error_code unknown;
  const auto own_path = std::filesystem::read_symlink("/proc/self/exe", unknown);
  invocation.own_path = unknown ? argv[0] : own_path.string();
  if (invocation.options.exec) return run_exec(invocation);
  if (invocation.options.srun) return run_srun(invocation);
  return Launch(std::move(invocation)).run();
}
