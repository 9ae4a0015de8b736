// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/detach.h"

#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/text/usage_error.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kStartTimeout{2'000};
constexpr std::size_t kShownBytes = 1024 * 1024;
constexpr char kRunning = 'r';
constexpr char kEnded = 'e';  // the exit status follows

/// "train-4711": from the program's name, so that a list can be read.
std::string invent_name(const Job& job) {
  std::string stem = std::filesystem::path(job.command.title).stem().string().substr(0, 40);
  for (char& c : stem)
    if (!is_job_name(std::string("a") + c)) c = '_';
  if (!is_job_name(stem)) stem = "job" + stem;
  return fmt::format("{}-{}", stem, ::getpid());
}

/// On a disk: the runtime directory may be a small file system in memory.
/// Homes are shared between hosts, names of jobs are not.
Result<std::string> output_file(const std::string& name, const std::string& host, const std::string& runtime,
                                const Environment& environment) {
  std::string directory = runtime;
  const auto state = lookup(environment, "XDG_STATE_HOME");
  const auto home = lookup(environment, "HOME");
  if (lookup(environment, "MUSTER_RUNTIME_DIR").value_or("").empty()) {
    if (state && !state->empty())
      directory = fmt::format("{}/muster", *state);
    else if (home && !home->empty())
      directory = fmt::format("{}/.local/state/muster", *home);
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return fail(ErrorCode::kIo, "create {} for the output: {}", directory, error.message());
  // Names of jobs are nobody else's business. The files are private in any case.
  if (directory != runtime) std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  return fmt::format("{}/{}@{}.log", directory, name, host);
}

/// The agent's exit status if it ends within kStartTimeout, or before it has said that the workers run.
std::optional<int> early_end(int reader) {
  const Instant deadline = SteadyClock::now() + kStartTimeout;
  std::string text;  // kRunning, or kEnded and a status
  while (text.size() < 2) {
    if (!wait_until_ready(reader, POLLIN, deadline)) return std::nullopt;
    char byte = 0;
    if (retry_eintr([&] { return ::read(reader, &byte, 1); }) <= 0) return kExitSystem;  // it died
    if (byte == kRunning && text.empty()) return std::nullopt;
    text.push_back(byte);
  }
  return static_cast<unsigned char>(text[1]);
}

int report(int status, const std::string& name, const std::string& output) {
  if (status == kExitOk) {
    (void)write_all(STDOUT_FILENO, name + "\n");
    return kExitOk;
  }
  (void)write_all(STDERR_FILENO, read_file(output, kShownBytes).value_or(""));
  (void)write_all(STDERR_FILENO,
                  fmt::format("muster: {} ended within 2 s with exit status {}; its output is in {}\n", name,
                              status, output));
  return status;
}

Result<void> leave_terminal(const std::string& output) {
  if (::setsid() < 0) return fail(errno_error("setsid", errno));
  ::signal(SIGHUP, SIG_IGN);  // the terminal's end is not the job's
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd file(
      ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!nothing || !file) return fail(errno_error("open " + output, errno));
  if (::dup2(nothing.get(), STDIN_FILENO) < 0 || ::dup2(file.get(), STDOUT_FILENO) < 0 ||
      ::dup2(file.get(), STDERR_FILENO) < 0)
    return fail(errno_error("dup2", errno));
  return {};
}

}  // namespace

void DetachedJob::write(char event, const Log& log) {
  if (const auto written = write_job_record(directory_, record_); !written && !std::exchange(logged_, true))
    log.warning(fmt::format("musterctl cannot follow this job: {}", written.error().message));
  if (!caller_ || event == '\0') return;
  std::string text(1, event);
  if (event == kEnded) text.push_back(static_cast<char>(record_.exit_status));
  (void)write_all(caller_.get(), text);
  caller_.reset();
}

void DetachedJob::gathering(const Log& log) {
  record_.state = "gathering";
  record_.workers.clear();
  write('\0', log);
}

void DetachedJob::running(const Assignment& assignment, std::vector<JobRecord::Worker> workers,
                          const Log& log) {
  record_.state = "running";
  record_.generation = assignment.generation;
  record_.restarts = assignment.attempt;
  record_.nodes = assignment.group_world_size;
  record_.world_size = assignment.world_size;
  record_.workers = std::move(workers);
  write(kRunning, log);
}

void DetachedJob::ended(int exit_status, const Log& log) {
  record_.state = "ended";
  record_.workers.clear();
  record_.exit_status = exit_status;
  record_.ended = std::time(nullptr);
  write(kEnded, log);
}

Result<std::variant<int, DetachedJob>> detach(const Job& job, std::string name,
                                              std::span<const std::string> command,
                                              const Environment& environment) {
  if (name.empty()) name = invent_name(job);
  if (!is_job_name(name))
    return usage("--job-name={}: 1 to 64 letters, digits, '.', '_' and '-', the first no '.' or '-'", name);
  const std::string directory = runtime_directory(environment);
  MUSTER_OK(prepare_runtime_directory(directory));
  const std::string lock_path = directory + "/.lock";
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return fail(errno_error("open " + lock_path, errno));
  const Instant until = SteadyClock::now() + kStartTimeout;
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (SteadyClock::now() >= until)
      return fail(ErrorCode::kIo, "{} is locked: another job is being started; try again", lock_path);
    ::poll(nullptr, 0, 10);  // others hold it for some milliseconds
  }
  std::vector<std::string> unreadable;
  for (const JobRecord& other : read_job_records(directory, unreadable))
    if (other.name == name && is_alive(other))
      return usage("--job-name={}: a job of this name runs already (pid {}); see musterctl status {}", name,
                   other.pid, name);
  MUSTER_TRY(const std::string output, output_file(name, job.logs.hostname, directory, environment));

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error("pipe", errno));
  UniqueFd reader(ends[0]), writer(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return fail(errno_error("fork", errno));
  if (pid > 0) {
    lock.reset();  // the other process keeps it until its record is written
    writer.reset();
    return report(early_end(reader.get()).value_or(kExitOk), name, output);
  }
  reader.reset();
  MUSTER_OK(leave_terminal(output));
  JobRecord record;
  record.name = std::move(name);
  record.pid = ::getpid();
  record.start_time = start_time_of(record.pid);
  record.boot_id = boot_id();
  record.host = job.host;
  std::error_code ignored;
  record.directory = std::filesystem::current_path(ignored).string();
  record.command.assign(command.begin(), command.end());
  record.output = output;
  record.began = std::time(nullptr);
  MUSTER_OK(write_job_record(directory, record));
  return DetachedJob(directory, std::move(record), std::move(writer));
}

}  // namespace muster::launcher
