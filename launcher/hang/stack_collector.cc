// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/stack_collector.h"

#include <algorithm>
#include <array>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/hang/process_state.h"
#include "launcher/text/line_splitter.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMostOutput = std::size_t{1} << 20;
constexpr std::size_t kMostLine = 512;
constexpr int kKillTimeoutMs = 1000;

/// By a signal or a debugger.
bool is_stopped(pid_t pid) {
  const auto threads = read_threads(pid, 1);
  return !threads.empty() && (threads[0].state == 'T' || threads[0].state == 't');
}

bool executable(const std::string& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0;
}

}  // namespace

struct StackCollector::Job {
  explicit Job(asio::io_context& io) : output(io), deadline(io) {}

  /// Handlers that are still queued find it so.
  void end() {
    kill();
    reap();
  }
  void kill() {
    over = true;
    boost::system::error_code ignored;
    output.close(ignored);
    deadline.cancel();
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  }
  void reap() {
    // It may be reading symbols from a file system that does not answer.
    pollfd gone{pidfd.get(), POLLIN, 0};
    retry_eintr([&] { return ::poll(&gone, 1, kKillTimeoutMs); });
    siginfo_t info{};
    ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd.get()), &info, WEXITED | WNOHANG);
  }

  bool over = false;
  Task task{};
  StackTool tool = StackTool::kGdb;
  UniqueFd pidfd;
  asio::posix::stream_descriptor output;
  asio::steady_timer deadline;
  LineSplitter splitter;
  std::vector<std::string> lines;
  std::size_t bytes = 0;
};

StackCollector::StackCollector(asio::io_context& io, Spawner& spawner, const Environment& environment,
                               const Timeouts& timeouts)
    : io_(io), spawner_(spawner), environment_(environment), timeouts_(timeouts), deadline_(io) {}

StackCollector::~StackCollector() {
  for (const auto& job : jobs_) job->kill();
  for (const auto& job : jobs_) {
    job->reap();
    // A tool that is killed leaves what it looked at stopped.
    if (const pid_t pid = job->task.rank->pid; is_stopped(pid)) ::kill(pid, SIGCONT);
  }
}

std::string StackCollector::find(StackTool tool) const {
  std::string_view path = lookup(environment_, "PATH").value_or("/usr/bin:/bin");
  while (!path.empty()) {
    const std::string_view folder = path.substr(0, path.find(':'));
    path.remove_prefix(std::min(path.size(), folder.size() + 1));
    if (!folder.starts_with('/')) continue;  // what lies where a job happens to run is not executed
    std::string candidate = fmt::format("{}/{}", folder, name_of(tool));
    if (executable(candidate)) return candidate;
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
    for (const StackTool tool : tools_for(rank.python))
      if (!find(tool).empty()) task.tools.push_back(tool);
    if (task.tools.empty()) {
      rank.tool_problem = rank.python ? "neither py-spy nor gdb is in PATH" : "gdb is not in PATH";
      continue;
    }
    open_.push_back(std::move(task));
  }
  deadline_.expires_after(timeouts_.all);
  deadline_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (error) return;
    over_ = true;
    for (const Task& task : std::exchange(open_, {}))
      task.rank->tool_problem =
          fmt::format("no time was left of {} s for all stacks", timeouts_.all.count() / 1000);
    while (!jobs_.empty()) finish(jobs_.front(), false);
  }));
  asio::post(io_, lifetime_.guard([this] { next(); }));
}

void StackCollector::next() {
  while (!open_.empty() && jobs_.size() < kAtOnce) {
    Task task = std::move(open_.front());
    open_.pop_front();
    if (task.tools.empty()) continue;  // each has said why not
    const StackTool tool = task.tools.front();
    task.tools.erase(task.tools.begin());
    const std::string path = find(tool);
    RankSnapshot& rank = *task.rank;
    if (!start(task, tool, path)) {
      rank.tool_problem = fmt::format("{} could not be started", path);
      open_.push_front(std::move(task));
    }
  }
  if (!jobs_.empty() || !open_.empty() || !done_) return;
  deadline_.cancel();
  std::exchange(done_, {})();
}

bool StackCollector::start(Task task, StackTool tool, const std::string& path) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  ::fcntl(writer.get(), F_SETFL, 0);  // the tool's end blocks, as it expects
  StringBlock arguments, environment;
  for (std::string& argument : arguments_of(tool, path, task.rank->pid)) arguments.add(std::move(argument));
  for (const auto& [name, value] : environment_)
    if (name != "DEBUGINFOD_URLS" && name != "LD_PRELOAD") environment.add(fmt::format("{}={}", name, value));
  auto job = std::make_shared<Job>(io_);
  auto spawned =
      spawner_.spawn({path.c_str(), arguments.data(), environment.data(), writer.get(), writer.get(), {}});
  if (!spawned) return false;
  job->task = std::move(task);
  job->tool = tool;
  job->pidfd = std::move(spawned->pidfd);
  job->output.assign(reader.release());
  job->deadline.expires_after(timeouts_.one);
  job->deadline.async_wait(lifetime_.guard([this, job](boost::system::error_code error) {
    if (!error && !job->over) finish(job, false);
  }));
  jobs_.push_back(job);
  read(job);
  return true;
}

void StackCollector::read(const std::shared_ptr<Job>& job) {
  job->output.async_wait(
      asio::posix::descriptor_base::wait_read, lifetime_.guard([this, job](boost::system::error_code error) {
        if (error || job->over) return;
        std::array<char, 16384> block;
        const ssize_t n =
            retry_eintr([&] { return ::read(job->output.native_handle(), block.data(), block.size()); });
        if (n < 0 && errno == EAGAIN) return read(job);
        const auto keep = [&](std::string_view line) {
          if (job->bytes > kMostOutput) return;
          job->bytes += line.size() + 1;
          job->lines.emplace_back(line.substr(0, kMostLine));
        };
        if (n > 0) {
          job->splitter.feed({block.data(), static_cast<std::size_t>(n)}, keep);
          return read(job);
        }
        job->splitter.finish(keep);
        finish(job, true);
      }));
}

void StackCollector::finish(std::shared_ptr<Job> job, bool in_time) {
  std::erase(jobs_, job);
  job->end();
  RankSnapshot& rank = *job->task.rank;
  const std::string_view tool = name_of(job->tool);
  rank.stacks = parse_stacks(job->tool, job->lines);
  rank.tool_output = std::move(job->lines);
  if (!rank.stacks.empty()) {
    rank.tool = tool;
    rank.tool_problem.clear();
  } else if (!in_time) {
    rank.tool_problem = fmt::format("{} did not answer in time", tool);
  } else {
    rank.tool_problem = fmt::format("{}: {}", tool, problem_in(rank.tool_output, "shows no stack"));
  }
  if (rank.stacks.empty() && !over_) open_.push_front(std::move(job->task));
  // A tool stops the worker to trace it; one that was killed at that moment has left it so.
  if (!in_time && is_stopped(rank.pid)) ::kill(rank.pid, SIGCONT);
  asio::post(io_, lifetime_.guard([this] { next(); }));
}

}  // namespace muster::launcher
