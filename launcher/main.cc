// SPDX-License-Identifier: Apache-2.0
// muster: reads the command line, makes the plan, and hands it to the agent.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include "launcher/agent/agent.h"
#include "launcher/checks/dry_run.h"
#include "launcher/checks/preflight.h"
#include "launcher/checks/trial_plan.h"
#include "launcher/cli/completion.h"
#include "launcher/cli/options.h"
#include "launcher/doctor/doctor_plan.h"
#include "launcher/hardware/cores.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/hardware.h"
#include "launcher/join/unfit_node.h"
#include "launcher/network/interfaces.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/output_sink.h"
#include "launcher/plan/exec_plan.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/placement_text.h"
#include "launcher/plan/srun_plan.h"
#include "launcher/process/cgroup.h"
#include "launcher/process/descendants.h"
#include "launcher/process/detach.h"
#include "launcher/process/fatal_errors.h"
#include "launcher/process/guardian.h"
#include "launcher/report/gpu_watch.h"
#include "launcher/telemetry/event_log.h"
#include "launcher/telemetry/status_page.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/syscall.h"

namespace {

using namespace muster;
using namespace muster::launcher;

constexpr std::string_view kVersion = "0.1.0";
constexpr std::chrono::seconds kFlushPatience{3};  // for whoever reads our output, once all is over

// Without persistence mode the driver takes more than a second per GPU to begin.
constexpr std::chrono::seconds kQuickPatience{10};
constexpr std::chrono::seconds kFullPatience{30};
constexpr std::chrono::seconds kTrialPatience{60};  // CUDA and NCCL take some seconds to begin with 8 GPUs

/// Descriptors 0 to 2 must exist, or a pipe of ours would become some worker's stderr.
void open_standard_descriptors() {
  int fd = 0;
  // The workers inherit them.
  while (fd >= 0 && fd <= 2) fd = ::open("/dev/null", O_RDWR);  // NOLINT(android-cloexec-open)
  if (fd > 2) ::close(fd);
}

/// The job's end is settled: a signal that comes late makes no other end of it, nor does it take the last
/// lines from whoever reads them. To be called while these signals are still handled.
void hold_back(const std::vector<int>& signals) {
  sigset_t held;
  ::sigemptyset(&held);
  for (const int signal : signals) ::sigaddset(&held, signal);
  ::sigprocmask(SIG_BLOCK, &held, nullptr);
}

std::string random_uuid() {
  std::array<unsigned char, 16> b{};
  if (::getrandom(b.data(), b.size(), 0) != static_cast<ssize_t>(b.size()))
    return fmt::format("pid-{}", ::getpid());
  b[6] = static_cast<unsigned char>((b[6] & 0x0f) | 0x40);
  b[8] = static_cast<unsigned char>((b[8] & 0x3f) | 0x80);
  std::string out;
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", b[i]);
  }
  return out;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

int complain(const Error& error) {
  std::fprintf(stderr, "muster: %s\n", error.message.c_str());
  switch (error.code) {
    case ErrorCode::kNotFound:
      return kExitNotFound;
    case ErrorCode::kUnsupported:
      return kExitNotExecutable;
    case ErrorCode::kInvalidArgument:
      return kExitUsage;
    default:
      return kExitSystem;
  }
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

Preflight preflight_of(const Options& options) {
  return parse_preflight(options.preflight).value_or(Preflight::kOff);
}

/// --preflight: says what is wrong with this node. Returns why it takes no part; nothing: it does. `wedged`:
/// the driver does not answer, and nobody asks it again.
std::string defect_of_node(const Options& options, const Job& job, const Environment& environment,
                           const std::optional<Finding>& wedged) {
  const Preflight level = preflight_of(options);
  if (level == Preflight::kOff) return {};
  const PreflightJob check = plan_preflight(level, job, options.oversubscribe, environment);
  auto findings = wedged ? std::vector{*wedged}
                         : run_preflight(check, level == Preflight::kQuick ? kQuickPatience : kFullPatience);
  // What is broken already is not asked to work.
  if (level == Preflight::kFull && unfit_text(findings).empty()) {
    TrialReport trials = try_devices(check, environment, kTrialPatience);
    if (!trials.figures.empty())
      std::fprintf(stderr, "muster: preflight of %s: %s\n", job.host.c_str(), trials.figures.c_str());
    findings.insert(findings.end(), trials.findings.begin(), trials.findings.end());
  }
  for (const Finding& finding : findings)
    std::fprintf(stderr, "muster: preflight of %s: %s%s\n", job.host.c_str(),
                 finding.unfit ? "" : "warning: ", finding.text.c_str());
  std::string out = unfit_text(findings);
  if (!out.empty()) std::fprintf(stderr, "muster: %s is not fit and does not take part\n", job.host.c_str());
  return out;
}

/// What others can look at while the job runs.
struct Outlook {
  std::optional<EventLog> events;
  std::optional<net::Listener> listener;
};

/// Before anything is started: who asked for it and cannot have it is told at once.
Result<Outlook> open_outlook(const Options& options, const Job& job) {
  Outlook out;
  if (options.dry_run) return out;
  if (!options.events.empty()) {
    MUSTER_TRY(EventLog opened, EventLog::open(options.events, job.host));
    out.events.emplace(std::move(opened));
  }
  if (options.metrics_addr.empty()) return out;
  MUSTER_TRY(net::Listener opened, net::open_status_listener("--metrics-addr", options.metrics_addr));
  // Only what nobody could know.
  if (const auto asked = net::parse_status_address(options.metrics_addr); asked && asked->port == 0)
    std::fprintf(stderr, "muster: metrics at http://%s/metrics\n", opened.address.c_str());
  out.listener.emplace(std::move(opened));
  return out;
}

/// Nobody who may read this process' environment (/proc/PID/environ), or that of what it forks, is to find
/// the secret there. The plan takes it from the copy that was made before.
void hide_secret() {
  const std::string name(env::kSecret);
  if (char* value = ::getenv(name.c_str())) std::fill_n(value, std::strlen(value), '\0');
  ::unsetenv(name.c_str());
}

double seconds_between(Instant from, Instant to) {
  return std::chrono::duration<double>(to - from).count();
}

Telemetry tell_beginning(const Options& options, const Job& job, const Log& log, EventLog* events) {
  Telemetry out(job, log, events);
  out.started(kVersion);
  if (preflight_of(options) != Preflight::kOff) out.preflight(options.preflight, job.unfit);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Instant begun = SteadyClock::now();
  open_standard_descriptors();
  end_on_fatal_errors();
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  const std::vector<std::string> command(argv, argv + argc);
  Environment environment = current_environment();
  hide_secret();
  if (is_doctor_node(arguments)) return run_doctor_node(arguments, environment);
  auto options = parse_options(arguments, environment);
  if (!options) return complain(options.error());
  if (options->help) return print(help_text());
  if (options->version) return print(fmt::format("muster {}\n", kVersion));
  if (options->print_completion) {
    const auto script = completion_script(*options->print_completion);
    return script ? print(*script) : complain(script.error());
  }
  std::error_code unknown;
  const auto own_path = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::string own = unknown ? command.front() : own_path.string();
  if (options->exec && options->doctor)
    return complain(
        {ErrorCode::kInvalidArgument, "--exec starts no agent, which --doctor needs on each node"});
  if (options->exec) {
    const auto plan = plan_exec(*options, environment, count_cpus);
    return complain(plan ? execute(*plan) : with_source(plan.error(), *options));
  }
  if (options->srun) {
    const auto plan = plan_srun(*options, environment, own);
    if (!plan || !options->dry_run)
      return complain(plan ? execute(*plan) : with_source(plan.error(), *options));
    return print(srun_plan_text(*plan));
  }
  std::optional<DoctorVerdict> doctor;
  if (options->doctor) {
    *options = doctor_options(*options, own);
    auto opened = DoctorVerdict::open();
    if (!opened) return complain(opened.error());
    doctor.emplace(*std::move(opened));
  }
  DriverLook driver = preflight_of(*options) == Preflight::kOff
                          ? DriverLook{}
                          : look_at_driver(gpu_paths(environment), kQuickPatience);
  Environment asked = environment;
  // The plan would wait for it: it is made without.
  if (driver.finding) asked.insert_or_assign("MUSTER_NVML_LIBRARY", "/dev/null");
  const Machine machine{[&] { return count_gpus(asked); },
                        count_cpus,
                        random_uuid,
                        host_name(),
                        [&] { return read_hardware(asked); },
                        [] { return count_cores(); },
                        has_gpu_driver(gpu_paths(environment)),
                        [&] { return count_listed_gpus(gpu_paths(environment)); },
                        [] { return read_cpu_room(); }};
  auto job = plan_job(*options, environment, machine);
  if (!job) {
    const int status = complain(with_source(job.error(), *options));
    if (!driver.finding) return status;
    std::fprintf(stderr, "muster: preflight: %s\n", driver.finding->text.c_str());
    return kExitPreflight;
  }
  environment.erase(std::string(env::kSecret));  // nor is any program that is started from here
  if (doctor) doctor->instruct(*options, *job);
  if (options->dry_run)
    for (const std::string& text : job->warnings) std::fprintf(stderr, "muster: %s\n", text.c_str());
  const Instant planned = SteadyClock::now();
  job->compare_clocks = preflight_of(*options) != Preflight::kOff;
  auto outlook = open_outlook(*options, *job);
  if (!outlook) {
    const int status = complain(outlook.error());
    return outlook.error().code == ErrorCode::kExhausted ? kExitPortInUse : status;
  }
  job->unfit = defect_of_node(*options, *job, environment, driver.finding);
  driver.process.reset();
  const Instant checked = SteadyClock::now();
  const Log plain_log("muster", parse_log_level(lookup(environment, "LOGLEVEL").value_or("WARNING")));
  EventLog* const events = outlook->events ? &*outlook->events : nullptr;
  if (!job->unfit.empty() && (options->dry_run_local || job->one_node())) {
    ::signal(SIGPIPE, SIG_IGN);  // the events' reader may have gone
    tell_beginning(*options, *job, plain_log, events).ended(kExitPreflight);
    return kExitPreflight;
  }
  if (options->dry_run) {
    if (!job->one_node() && !options->dry_run_local) {
      ::signal(SIGPIPE, SIG_IGN);
      return dry_run_of_all(*job, environment, dry_run_patience(*options, *job), plain_log);
    }
    return print(plan_of_cgroups(parse_cgroup_mode(options->cgroup).value_or(CgroupMode::kAuto)) +
                 dry_run_text(*job, environment));
  }
  // torchrun's default, which is right for agents on one host only.
  if (job->mode == RendezvousMode::kStatic && job->nodes > 1 && is_loopback(job->master_addr) &&
      options->rdzv_endpoint.empty() && !options->given.contains("master-addr"))
    std::fprintf(
        stderr,
        "muster: --nnodes=%s without --master-addr: each node looks for node 0 at %s, on its own host; "
        "give --master-addr=HOST of node 0\n",
        options->nnodes.c_str(), job->master_addr.c_str());
  if (options->report_bindings) std::fputs(placement_table(*job).c_str(), stderr);

  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a log that has reached ulimit -f is no reason to end a job
  std::optional<DetachedJob> detached;
  if (options->detach) {
    auto side = detach(*job, options->job_name, command, environment);
    if (!side) return complain(side.error());
    if (const int* exit_status = std::get_if<int>(&*side)) return *exit_status;
    detached = std::get<DetachedJob>(*std::move(side));
    if (outlook->listener) detached->serves_metrics(outlook->listener->address);
  }
  Telemetry beginning = tell_beginning(*options, *job, plain_log, events);
  if (!job->unfit.empty()) {
    outlook->listener.reset();  // nobody would answer
    boost::asio::io_context io(1);
    const int status = tell_unfit(io, *job, plain_log);
    if (detached) detached->ended(status, plain_log);
    beginning.ended(status);
    return status;
  }
  Descendants descendants(job->token());
  // Whoever follows the events or the detached job's entry sees its end.
  const auto give_up = [&](const Error& error) {
    const int status = complain(error);
    if (detached) detached->ended(status, plain_log);
    beginning.ended(status);
    return status;
  };
  auto guardian = Guardian::start(static_cast<std::size_t>(job->local_world_size), job->token());
  if (!guardian) return give_up(guardian.error());
  descendants.spare(guardian->pid());
  auto cgroups = WorkerCgroups::open(parse_cgroup_mode(options->cgroup).value_or(CgroupMode::kAuto),
                                     job->token(), *guardian);
  if (!cgroups) return give_up(cgroups.error());
  std::optional<GpuWatch> gpu_watch;
  if (job->gpu_node) {
    auto started = GpuWatch::start(gpu_paths(environment));
    if (!started) return give_up(started.error());
    descendants.spare(gpu_watch.emplace(*std::move(started)).pid());
  }
  const auto descriptor_limit = make_room_for_descriptors(job->local_world_size);
  // What is still suspended when the loop goes may want to log: the log outlives the loop, its target does
  // not.
  OutputSink* log_target = nullptr;
  const Log log("muster", parse_log_level(lookup(environment, "LOGLEVEL").value_or("WARNING")),
                [&log_target](std::string_view line) {
                  if (log_target != nullptr) log_target->write(line);
                });
  boost::asio::io_context io(1);
  std::unique_ptr<LogWriter> log_writer;
  if (job->logs.rotation.max_bytes > 0) {
    auto started = LogWriter::start(io, job->logs.rotation);
    if (!started) return give_up(started.error());
    log_writer = *std::move(started);
    descendants.spare(log_writer->pid());
  }
  OutputSink out(io, STDOUT_FILENO);
  OutputSink err(io, STDERR_FILENO);
  log_target = &err;
  out.when_failing([&log](int error) {
    log.warning(fmt::format("stdout: {}; what is not in files is lost", errno_text(error)));
  });
  for (const std::string& text : job->warnings) log.warning(text);
  if (!job->gpu_shortage.empty())
    log.warning(
        fmt::format("{}; who takes the GPU of its LOCAL_RANK will fail, or share one", job->gpu_shortage));
  if (cgroups->enabled())
    log.info(fmt::format("the workers' control groups are in {}", cgroups->directory()));
  else if (!cgroups->reason().empty())
    log.info(fmt::format("the workers have no control groups: {}", cgroups->reason()));
  int status = kExitSystem;
  {
    const GuardianWatch watch(io, *guardian, log, [&](pid_t pid) {
      descendants.spare(pid);
      cgroups->guardian_is(pid);
    });
    Telemetry telemetry(*job, log, events);
    const Instant now = SteadyClock::now();
    if (options->timeline) telemetry.tell_timeline([&err](std::string_view line) { err.write(line); });
    telemetry.phase("plan", seconds_between(begun, planned));
    telemetry.phase("preflight", seconds_between(planned, checked));
    telemetry.phase("prepare", seconds_between(checked, now));
    std::optional<StatusPage> page;
    if (outlook->listener) page.emplace(io, *std::move(outlook->listener), *job, telemetry, kVersion);
    Agent agent(io, *job, environment, log, *guardian, *cgroups, descendants, out, err, descriptor_limit,
                telemetry);
    if (detached) agent.keep_entry(*detached);
    if (log_writer) agent.rotate_logs(*log_writer);
    if (gpu_watch) agent.watch_gpus(*gpu_watch);
    status = agent.run();
    hold_back(job->signals);
    telemetry.ended(status);
  }
  if (detached) detached->ended(status, log);
  const std::size_t lost_out = out.flush(SteadyClock::now() + kFlushPatience);
  if (out.lost_bytes() > 0)
    log.warning(
        fmt::format("stdout: {} bytes of the workers' output could not be written", out.lost_bytes()));
  if (lost_out > 0)
    log.warning(
        fmt::format("stdout was not read: the last {} bytes of the workers' output are lost", lost_out));
  if (const std::size_t lost = err.flush(SteadyClock::now() + kFlushPatience); lost > 0)
    err.write_now_or_never(fmt::format("\nmuster: stderr was not read: the last {} bytes are lost\n", lost));
  log_target = nullptr;
  return doctor ? doctor->status_after(status) : status;
}
