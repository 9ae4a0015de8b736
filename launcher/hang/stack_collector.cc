// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/stack_collector.h"

#include <array>
#include <fcntl.h>
#include <optional>
#include <signal.h>
#include <unistd.h>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/hang/process_state.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMostOutput = std::size_t{1} << 20;
constexpr std::size_t kMostLine = 512;

/// By a signal or a debugger.
bool is_stopped(pid_t pid) {
  const auto threads = read_threads(pid, 1);
  return !threads.empty() && (threads[0].state == 'T' || threads[0].state == 't');
}

}  // namespace

struct StackCollector::Job {
  Job(asio::io_context& io, HelperProcess child, Task what)
      : process(std::move(child)), task(std::move(what)), output(io), deadline(io) {
    output.assign(::fcntl(process->channel(), F_DUPFD_CLOEXEC, 0));
  }
  /// Handlers that are still queued find it so. SIGKILL does not wait for a tool that reads symbols from a
  /// file system that does not answer.
  void end() {
    process.reset();
    boost::system::error_code ignored;
    output.close(ignored);
    deadline.cancel();
  }
  /// A tool that is killed leaves what it looked at stopped.
  void resume_worker() const {
    if (const pid_t pid = task.rank->pid; is_stopped(pid)) ::kill(pid, SIGCONT);
  }

  std::optional<HelperProcess> process;  // nothing: it is over
  Task task;
  asio::posix::stream_descriptor output;
  LoopTimer deadline;
  std::string text;
};

StackCollector::StackCollector(asio::io_context& io, const Environment& environment, const Timeouts& timeouts)
    : io_(io), environment_(environment), timeouts_(timeouts), deadline_(io) {
  environment_.erase("DEBUGINFOD_URLS");
  environment_.erase("LD_PRELOAD");
}

StackCollector::~StackCollector() {
  for (const auto& job : jobs_) job->process->kill();
  for (const auto& job : jobs_) {
    job->end();
    job->resume_worker();
  }
}

std::string StackCollector::find(StackTool tool) const {
  for (const std::string_view folder : split(lookup(environment_, "PATH").value_or("/usr/bin:/bin"), ':')) {
    if (!folder.starts_with('/')) continue;  // what lies where a job happens to run is not executed
    std::string candidate = fmt::format("{}/{}", folder, name_of(tool));
    if (::faccessat(AT_FDCWD, candidate.c_str(), X_OK, AT_EACCESS) == 0) return candidate;
  }
  return {};
}

void StackCollector::collect(std::vector<RankSnapshot>& ranks, std::function<void()> done) {
  done_ = std::move(done);
  over_ = false;
  for (RankSnapshot& rank : ranks) {
    if (!rank.runs() || rank.pid <= 1) continue;
    // gdb would stop it once more when it goes, perhaps after somebody else has let it go on.
    if (is_stopped(rank.pid)) {
      rank.tool_problem = "the process is stopped, and left so";
      continue;
    }
    Task task{&rank, {}};
    for (const StackTool tool : kStackTools)
      if (!find(tool).empty()) task.tools.push_back(tool);
    if (task.tools.empty()) {
      rank.tool_problem = "neither py-spy nor gdb is in PATH";
      continue;
    }
    open_.push_back(std::move(task));
  }
  lifetime_.call_at(deadline_, SteadyClock::now() + timeouts_.all, [this] {
    over_ = true;
    for (const Task& task : std::exchange(open_, {}))
      task.rank->tool_problem =
          fmt::format("no time was left of {} s for all stacks", timeouts_.all.count() / 1000);
    while (!jobs_.empty()) finish(jobs_.front(), false);
  });
  asio::post(io_, lifetime_.guard([this] { next(); }));
}

void StackCollector::next() {
  while (!open_.empty() && jobs_.size() < kAtOnce) {
    Task task = std::move(open_.front());
    open_.pop_front();
    if (!task.tools.empty()) start(std::move(task));  // else each has said why not
  }
  if (!jobs_.empty() || !done_) return;
  deadline_.cancel();
  std::exchange(done_, {})();
}

void StackCollector::start(Task task) {
  const StackTool tool = task.tools.front();
  const auto command = arguments_of(tool, find(tool), task.rank->pid);
  auto child = HelperProcess::execute(
      {.name = "job-stacks"}, command, environment_, true,
      [&](int out, int error) { (void)write_all(out, errno_error("error: " + command[0], error).message); });
  if (!child) {
    task.rank->tool_problem = child.error().message;
    return;
  }
  const auto job = std::make_shared<Job>(io_, *std::move(child), std::move(task));
  lifetime_.call_at(job->deadline, SteadyClock::now() + timeouts_.one, [this, job] {
    if (job->process) finish(job, false);
  });
  jobs_.push_back(job);
  read(job);
}

void StackCollector::read(const std::shared_ptr<Job>& job) {
  lifetime_.when_readable(job->output, [this, job] {
    if (!job->process) return;
    std::array<char, 16384> block;
    const ssize_t n =
        retry_eintr([&] { return ::read(job->output.native_handle(), block.data(), block.size()); });
    if (n == 0 || (n < 0 && errno != EAGAIN)) return finish(job, true);
    if (n > 0 && job->text.size() < kMostOutput) job->text.append(block.data(), static_cast<std::size_t>(n));
    read(job);
  });
}

void StackCollector::finish(std::shared_ptr<Job> job, bool in_time) {
  std::erase(jobs_, job);
  job->end();
  RankSnapshot& rank = *job->task.rank;
  const StackTool tool = job->task.tools.front();
  job->task.tools.erase(job->task.tools.begin());
  std::vector<std::string> lines;
  for (const std::string_view line : split(job->text, '\n')) lines.emplace_back(line.substr(0, kMostLine));
  rank.stacks = parse_stacks(tool, lines);
  if (!rank.stacks.empty()) {
    rank.tool = name_of(tool);
    rank.tool_problem.clear();
  } else if (!in_time) {
    rank.tool_problem = fmt::format("{} did not answer in time", name_of(tool));
  } else {
    rank.tool_problem = fmt::format("{}: {}", name_of(tool), problem_in(lines, "shows no stack"));
  }
  if (!in_time) job->resume_worker();
  if (rank.stacks.empty() && !over_) open_.push_front(std::move(job->task));
  asio::post(io_, lifetime_.guard([this] { next(); }));
}

}  // namespace muster::launcher
