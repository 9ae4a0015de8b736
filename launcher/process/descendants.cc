// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/descendants.h"

#include <algorithm>
#include <map>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/process/process_stat.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr int kMaxPasses = 100;  // each ends all that the one before has missed: who forks faster than that?
constexpr Millis kPassTimeout{1000};
constexpr std::size_t kMaxListBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxEnvironmentBytes = std::size_t{4} << 20;

bool has_token(pid_t pid, std::string_view token) {
  const auto text = read_file(fmt::format("/proc/{}/environ", pid), kMaxEnvironmentBytes);
  return text && text->find(token) != std::string::npos;
}

/// Until all of them have ended.
void wait_for_ends(const std::vector<UniqueFd>& processes, Instant deadline) {
  for (const UniqueFd& process : processes) wait_for_end(process.get(), deadline);
}

}  // namespace

std::optional<ProcessMark> mark_of(pid_t pid) {
  const auto process = read_process_stat(pid);
  return process ? std::optional(ProcessMark{pid, process->start_ticks}) : std::nullopt;
}

Descendants::Descendants(std::string token)
    : token_(std::move(token)),
      // The first process of a PID namespace is given the orphans of other programs too.
      had_children_(::getpid() == 1 || have_children()) {
  if (had_children_)
    for (const pid_t pid : list_pids())
      if (const auto process = read_process_stat(pid); process && process->parent == ::getpid())
        spared_.push_back(pid);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

/// Any child that is not spared, ended or not. The kernel's list of children costs less than a look at all
/// processes; where there is none (CONFIG_PROC_CHILDREN), there may be children.
bool Descendants::have_children() const {
  const auto threads = list_pids("/proc/self/task");
  for (const pid_t thread : threads) {
    const auto text = read_file(fmt::format("/proc/self/task/{}/children", thread), kMaxListBytes);
    if (!text) return true;
    for (const pid_t pid : parse_pids(*text))
      if (std::ranges::find(spared_, pid) == spared_.end()) return true;
  }
  return threads.empty();
}

void Descendants::reap(const std::function<bool(pid_t)>& is_worker) const {
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (is_worker(info.si_pid)) return;  // its own descriptor tells of it; what is behind it waits so long
    ::waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG);
  }
}

/// Without what is spared and below that.
std::vector<ProcessStat> Descendants::look() const {
  std::multimap<pid_t, ProcessStat> children;
  for (const pid_t pid : list_pids())
    if (const auto process = read_process_stat(pid)) children.emplace(process->parent, *process);
  std::vector<ProcessStat> out;
  std::vector<pid_t> open{::getpid()};
  while (!open.empty()) {
    const auto [begin, end] = children.equal_range(open.back());
    open.pop_back();
    for (auto child = begin; child != end; ++child) {
      const pid_t pid = child->second.pid;
      if (pid <= 1 || std::ranges::find(spared_, pid) != spared_.end()) continue;
      open.push_back(pid);
      if (!had_children_ || has_token(pid, token_)) out.push_back(child->second);
    }
  }
  return out;
}

std::vector<pid_t> Descendants::end(const std::function<bool(pid_t)>& is_worker, Instant deadline) const {
  std::vector<pid_t> left;
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    reap(is_worker);
    if (!have_children()) return {};
    left.clear();
    for (const ProcessStat& process : look())
      if (!process.ended()) left.push_back(process.pid);
    if (left.empty() || SteadyClock::now() >= deadline) return left;
    std::vector<UniqueFd> processes;
    for (const pid_t pid : left) {
      UniqueFd process = open_pidfd(pid);
      if (!process) continue;
      // Between the look and here the number may have passed to another program: ours are still below us.
      const auto now = read_process_stat(pid);
      const bool ours =
          now && (now->parent == ::getpid() || std::ranges::find(left, now->parent) != left.end());
      if (!ours) continue;
      send_signal(process.get(), SIGKILL);
      processes.push_back(std::move(process));
    }
    wait_for_ends(processes, deadline);
  }
  return left;
}

void end_by_token(std::string_view token) {
  if (token.empty()) return;
  // Within execve a process has no environment to read: that there is nobody is looked for twice.
  int without = 0;
  for (int pass = 0; pass < kMaxPasses && without < 2; ++pass) {
    std::vector<UniqueFd> found;
    for (const pid_t pid : list_pids()) {
      if (pid <= 1 || pid == ::getpid()) continue;
      if (const auto process = read_process_stat(pid); !process || process->state == 'Z') continue;
      if (!has_token(pid, token)) continue;
      UniqueFd process = open_pidfd(pid);
      if (!process || !has_token(pid, token)) continue;
      send_signal(process.get(), SIGKILL);
      found.push_back(std::move(process));
    }
    without = found.empty() ? without + 1 : 0;
    wait_for_ends(found, SteadyClock::now() + kPassTimeout);
  }
}

}  // namespace muster::launcher
