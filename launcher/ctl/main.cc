// SPDX-License-Identifier: Apache-2.0
// musterctl: the detached jobs of this user on this host: ls, status, attach, logs, stop, rm; the jobs of a
// coordinator: jobs; the live view of either: top, open; and who uses the GPUs: gpus.
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/inotify.h>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "launcher/ctl/commands.h"
#include "launcher/job/exit_status.h"
#include "launcher/process/job_record.h"
#include "launcher/process/process_stat.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/text_table.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/command_line.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace {

using namespace muster;
using namespace muster::launcher;

constexpr Millis kSecondSignal{200};

/// The agent of a detached job as a handle (pidfd), so that what is signalled and waited for is the process
/// that the entry means, and not one that got its number since. Empty: it is gone.
UniqueFd agent_of(const JobRecord& entry) {
  UniqueFd out = open_pidfd(entry.pid);
  // Looked at after the handle is there: if it is the right one now, the handle is of the right one.
  return out && is_alive(entry) ? std::move(out) : UniqueFd();
}

Result<void> copy(int file) {
  std::array<char, 64 * 1024> bytes{};
  while (true) {
    const ssize_t n = retry_eintr([&] { return ::read(file, bytes.data(), bytes.size()); });
    if (n < 0) return fail(errno_error("read the job's output", errno));
    if (n == 0) return {};
    if (auto written = write_all(STDOUT_FILENO, {bytes.data(), static_cast<std::size_t>(n)}); !written)
      return fail(ErrorCode::kPeerGone, "nobody reads the output");
  }
}

/// Where the last `lines` lines of a file begin; 0: all. Reads backwards: what is before them costs nothing.
Result<off_t> beginning_of_last_lines(int file, const std::string& path, std::size_t lines) {
  const off_t end = lines == 0 ? 0 : ::lseek(file, 0, SEEK_END);
  std::array<char, 64 * 1024> block{};
  for (off_t at = end; at > 0;) {
    const auto size = std::min(block.size(), static_cast<std::size_t>(at));
    at -= static_cast<off_t>(size);
    if (retry_eintr([&] { return ::pread(file, block.data(), size, at); }) != static_cast<ssize_t>(size))
      return fail(errno_error("read " + path, errno));
    for (off_t next = at + static_cast<off_t>(size); next > at; --next)
      if (block[static_cast<std::size_t>(next - 1 - at)] == '\n' && next < end && --lines == 0) return next;
  }
  return 0;
}

/// Copies the last `lines` lines of `path` (0: all) to stdout, and what is added to it until `process` (-1:
/// nothing to wait for) has ended. Sleeps in between. kPeerGone: nobody reads stdout any more. Source:
/// inotify(7).
Result<void> follow(const std::string& path, std::size_t lines, int process) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail(errno_error("open " + path, errno));
  MUSTER_TRY(const off_t from, beginning_of_last_lines(file.get(), path, lines));
  if (::lseek(file.get(), from, SEEK_SET) < 0) return fail(errno_error("seek in " + path, errno));
  if (process < 0) return copy(file.get());
  const UniqueFd changes(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!changes || ::inotify_add_watch(changes.get(), path.c_str(), IN_MODIFY) < 0)
    return fail(errno_error("watch " + path, errno));
  while (true) {
    MUSTER_OK(copy(file.get()));
    std::array<pollfd, 3> wait{pollfd{changes.get(), POLLIN, 0}, pollfd{process, POLLIN, 0},
                               pollfd{STDOUT_FILENO, 0, 0}};  // the reader's end is reported unasked
    if (::poll(wait.data(), wait.size(), -1) < 0) continue;
    if (wait[2].revents != 0) return fail(ErrorCode::kPeerGone, "nobody reads the output");
    if (wait[1].revents != 0) return copy(file.get());
    alignas(inotify_event) std::array<char, 4096> events;
    (void)retry_eintr([&] { return ::read(changes.get(), events.data(), events.size()); });
  }
}

struct Jobs {
  std::string directory;
  std::vector<JobRecord> entries;  // the state of those whose agent is gone without a word is "lost"

  explicit Jobs(const Environment& environment) : directory(runtime_directory(environment)) {
    std::vector<std::string> complaints;
    entries = read_job_records(directory, complaints);
    for (const std::string& text : complaints) complain("left out: " + text, 0);
    for (JobRecord& entry : entries)
      if (entry.state != "ended" && !is_alive(entry)) entry.state = "lost";
  }

  /// By name, or by the only name that begins so.
  [[nodiscard]] const JobRecord* find(const std::string& name) const {
    const JobRecord* out = nullptr;
    int matches = 0;
    for (const JobRecord& entry : entries) {
      if (entry.name == name) return &entry;
      if (!entry.name.starts_with(name)) continue;
      out = &entry;
      ++matches;
    }
    if (matches == 1) return out;
    complain(matches == 0
                 ? fmt::format("no job {}; musterctl ls lists the jobs of this user on this host", name)
                 : fmt::format("{} jobs begin with {}; musterctl ls lists them", matches, name),
             0);
    return nullptr;
  }

  /// The only one that runs.
  [[nodiscard]] const JobRecord* only() const {
    const auto found = std::ranges::find_if(entries, is_alive);
    const auto running = std::ranges::count_if(entries, is_alive);
    if (running == 1) return &*found;
    complain(
        running == 0
            ? "no job of yours that was started with --detach runs here; give --url or --endpoint"
            : fmt::format("{} jobs run here; name one (musterctl ls lists them), or give --url or --endpoint",
                          running),
        0);
    return nullptr;
  }
};

int list(const Jobs& jobs, bool json) {
  if (json) {
    std::string text = "[";
    for (const JobRecord& entry : jobs.entries) text += (text.size() > 1 ? "," : "") + to_json(entry);
    std::printf("%s]\n", text.c_str());
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"NAME", "STATE", "AGE", "RANKS", "RESTARTS", "COMMAND"}};
  for (const JobRecord& entry : jobs.entries)
    rows.push_back({entry.name, state_of(entry), age_of(entry.began, std::time(nullptr)),
                    fmt::format("{}", entry.world_size), fmt::format("{}", entry.restarts),
                    command_of(entry)});
  std::fputs(text_table(rows).c_str(), stdout);
  return 0;
}

/// The entry as it is now; the agent writes its end before it goes.
JobRecord refreshed(const JobRecord& entry, const Environment& environment) {
  for (const JobRecord& now : Jobs(environment).entries)
    if (now.name == entry.name && now.pid == entry.pid) return now;
  return entry;
}

int logs(const JobRecord& entry, std::size_t lines, bool wait) {
  const UniqueFd agent = agent_of(entry);
  const auto shown = follow(entry.output, lines, wait && agent ? agent.get() : -1);
  if (!shown && shown.error().code != ErrorCode::kPeerGone)
    return complain(shown.error().message, kExitSystem);
  return 0;
}

/// Its output from now on; ends with the job, and with its exit status.
int attach(const JobRecord& entry, const Environment& environment) {
  if (::isatty(STDERR_FILENO) == 1 && is_alive(entry))
    complain(fmt::format("{}: Ctrl-C leaves it running; musterctl stop {} ends it", entry.name, entry.name),
             0);
  if (const int status = logs(entry, 20, true); status != 0) return status;
  const JobRecord now = refreshed(entry, environment);
  if (now.state == "ended") return now.exit_status;
  return is_alive(now) ? 0 : complain(entry.name + ": its agent ended without a report", kExitSystem);
}

int stop(const JobRecord& entry, double seconds, bool at_once, const Environment& environment) {
  const UniqueFd agent = agent_of(entry);
  if (!agent) return complain(fmt::format("{} does not run: {}", entry.name, state_of(entry)), 0);
  const Instant deadline = SteadyClock::now() + to_millis(seconds);
  bool gone = false;
  do {  // of two signals sent at once the kernel keeps one; the second that arrives skips to SIGKILL
    if (!send_signal(agent.get(), SIGTERM) && errno != ESRCH)
      return complain(errno_error("send a signal", errno).message, kExitSystem);
    gone = wait_for_end(agent.get(),
                        at_once ? std::min(deadline, SteadyClock::now() + kSecondSignal) : deadline);
  } while (!gone && at_once && SteadyClock::now() < deadline);
  if (!gone)
    return complain(fmt::format("{} was asked to end and still runs after {:g} s; --now kills its workers",
                                entry.name, seconds),
                    kExitStillRuns);
  std::printf("%s: %s\n", entry.name.c_str(), state_of(refreshed(entry, environment)).c_str());
  return 0;
}

int remove(const Jobs& jobs, const JobRecord& entry) {
  if (is_alive(entry))
    return complain(fmt::format("{} runs; musterctl stop {} ends it", entry.name, entry.name),
                    kExitStillRuns);
  std::error_code ignored;
  std::filesystem::remove(fmt::format("{}/{}.json", jobs.directory, entry.name), ignored);
  std::filesystem::remove(entry.output, ignored);
  return 0;
}

CLI::Option* add_coordinator(CLI::App& out, JobsCommand& look) {
  auto* endpoint = out.add_option("--endpoint", look.endpoint,
                                  "HOST[:PORT] of a musterd [port 29500], or of the agent that runs the "
                                  "job's coordinator (c10d: port 29400)");
  out.add_option("--secret-file", look.secret_file,
                 "file with the secret, readable by its owner alone [MUSTER_SECRET]");
  out.add_option("--tls-ca", look.tls.ca, "PEM file with the authority of the coordinator's certificate");
  out.add_option("--tls-cert", look.tls.cert, "PEM file with the certificate to show");
  out.add_option("--tls-key", look.tls.key, "PEM file with its key, readable by its owner alone");
  out.add_option("--timeout", look.timeout_s, "seconds to wait for the answer")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  return endpoint;
}

CLI::App* define_live(CLI::App& app, const char* name, const char* what, TopCommand& look) {
  auto* out = app.add_subcommand(name, what);
  out->add_option("job", look.coordinator.job,
                  "a detached job's name, or with --endpoint the job's id [the only one that runs]");
  auto* url = out->add_option("--url", look.url, "http://HOST:PORT of its status page, see --metrics-addr");
  add_coordinator(*out, look.coordinator)->excludes(url);
  return out;
}

CLI::App* define_top(CLI::App& app, TopCommand& look) {
  auto* out = define_live(app, "top", "a job's ranks, live; on no terminal as lines, once", look);
  auto* interval = out->add_option("-d,--interval", look.interval_s, "seconds between two updates")
                       ->check(CLI::Range(0.1, 3600.0))
                       ->capture_default_str();
  auto* count = out->add_option("-n,--count", look.count, "print lines this many times; 0: until interrupted")
                    ->check(CLI::NonNegativeNumber);
  out->add_flag("--json", look.coordinator.json, "print the status document, which is JSON");
  out->callback([&look, interval, count] {
    look.screen = count->count() == 0 && !look.coordinator.json;
    if (count->count() == 0 && interval->count() > 0) look.count = 0;
  });
  return out;
}

int run(int argc, char** argv) {
  CLI::App app{
      "musterctl: the jobs that were started with muster --detach, by this user on this host; and those of a "
      "coordinator"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "musterctl " MUSTER_VERSION);
  std::string name;
  bool json = false, wait = false, at_once = false;
  std::size_t lines = 0;
  double seconds = 60;
  const auto with_name = [&](CLI::App* command) {
    command->add_option("name", name, "the job's name, or the beginning of it")->required();
    return command;
  };
  auto* ls = app.add_subcommand("ls", "list the jobs");
  auto* show = with_name(app.add_subcommand("status", "one job: world, ranks, their progress, output file"));
  for (auto* command : {ls, show}) command->add_flag("--json", json, "print JSON");
  auto* join =
      with_name(app.add_subcommand("attach", "show a job's output until it ends; exit with its exit status"));
  auto* print = with_name(app.add_subcommand("logs", "print a job's output"));
  print->add_option("-n,--lines", lines, "the last lines only; 0: all")->check(CLI::Range(0, 1'000'000'000));
  print->add_flag("-f,--follow", wait, "and what is added, until the job ends");
  auto* end = with_name(app.add_subcommand("stop", "stop a job as SIGTERM does, and wait"));
  end->add_option("--timeout", seconds, "seconds to wait")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  end->add_flag("--now", at_once, "kill the workers instead of giving them time");
  auto* forget =
      with_name(app.add_subcommand("rm", "remove the record and the output file of a job that has ended"));
  JobsCommand look;
  auto* jobs_of =
      app.add_subcommand("jobs", "list the jobs of a coordinator: a musterd, or the one that an agent runs");
  jobs_of->add_option("job", look.job, "only this job, and its nodes [all jobs]");
  add_coordinator(*jobs_of, look)->required();
  jobs_of->add_flag("--json", look.json, "print JSON");
  GpusCommand gpus;
  auto* gpus_of =
      app.add_subcommand("gpus", "who uses the GPUs of this host, and what dead agents left on them");
  gpus_of->add_flag("--json", gpus.json, "print JSON");
  gpus_of->add_flag("--free", gpus.free, "end processes of yours that workers of dead agents are or started");
  TopCommand live;
  CLI::App* top = define_top(app, live);
  CLI::App* open = define_live(
      app, "open", "how a browser reaches its page, metrics and TensorBoard: the ssh tunnel", live);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return end_of_parsing("musterctl", app, error);
  }

  const Environment environment = current_environment();
  if (jobs_of->parsed()) return show_jobs(look, environment);
  if (gpus_of->parsed()) return show_gpus(gpus, environment);
  if (!live.url.empty() || !live.coordinator.endpoint.empty())
    return (top->parsed() ? run_top : run_open)(live, nullptr, environment);
  const Jobs jobs(environment);
  if (ls->parsed()) return list(jobs, json);
  const bool looks = top->parsed() || open->parsed();
  if (looks) name = live.coordinator.job;
  const JobRecord* entry = looks && name.empty() ? jobs.only() : jobs.find(name);
  if (entry == nullptr) return kExitNoSuchJob;
  if (looks) return (top->parsed() ? run_top : run_open)(live, entry, environment);
  if (show->parsed()) {
    std::fputs((json ? status_json(*entry) : status_text(*entry, std::time(nullptr))).c_str(), stdout);
    return 0;
  }
  if (join->parsed()) return attach(*entry, environment);
  if (print->parsed()) return logs(*entry, lines, wait);
  if (end->parsed()) return stop(*entry, seconds, at_once, environment);
  return forget->parsed() ? remove(jobs, *entry) : kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run(argc, argv);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return complain(errno_error("stdout", errno).message, kExitSystem);
}
