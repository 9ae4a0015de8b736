// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/cgroup.h"

#include <algorithm>
#include <errno.h>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/process/guardian.h"
#include "launcher/process/process_stat.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxGroupFileBytes = std::size_t{4} << 20;

/// The group and all below it, each before those that are in it.
std::vector<std::string> groups_from(const std::string& top) {
  std::vector<std::string> out{top};
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::error_code error;
    for (std::filesystem::directory_iterator at(out[i], error), end; !error && at != end; at.increment(error))
      if (at->is_directory(error)) out.push_back(at->path().native());
  }
  return out;
}

std::vector<pid_t> members_of(const std::string& group) {
  return parse_pids(read_file(group + "/cgroup.procs", kMaxGroupFileBytes).value_or(""));
}

constexpr std::chrono::seconds kLastTimeout{2};  // for what is left at the end to die of SIGKILL

bool marked_delegated(const std::string& directory) {
  for (const char* name : {"trusted.delegate", "user.delegate"}) {
    char value = 0;
    if (::getxattr(directory.c_str(), name, &value, 1) == 1 && value == '1') return true;
  }
  return false;
}

/// The top of what this process can see of the hierarchy.
bool is_top(const std::string& directory) {
  struct stat here {
  }, above{};
  return ::stat(directory.c_str(), &here) == 0 && ::stat((directory + "/..").c_str(), &above) == 0 &&
         here.st_dev != above.st_dev;
}

}  // namespace

namespace cgroup {

std::vector<std::string> candidates(std::string_view groups, std::string_view controller,
                                    const std::string& root) {
  std::vector<std::string> mounts{fmt::format("{}/{}", root, controller)};
  if (controller.empty()) mounts = {root, root + "/unified"};
  std::vector<std::string> out;
  while (!groups.empty()) {
    std::string_view line = take_front(groups, '\n');  // "4:memory:/path", "0::/path"
    take_front(line, ':');
    if (take_front(line, ':') != controller) continue;
    for (const std::string& mount : mounts) {
      if (line.size() > 1) out.push_back(fmt::format("{}{}", mount, line));
      out.push_back(mount);
    }
  }
  return out;
}

std::string own_directory() {
  for (const std::string& directory :
       candidates(read_file(kOwnGroups, kMaxGroupFileBytes).value_or(""), "")) {
    const std::vector<pid_t> here = members_of(directory);
    if (std::ranges::find(here, ::getpid()) != here.end()) return directory;
  }
  return {};
}

std::vector<pid_t> processes(const std::string& directory) {
  std::vector<pid_t> out;
  for (const std::string& group : groups_from(directory))
    for (const pid_t pid : members_of(group)) out.push_back(pid);
  return out;
}

bool kill(const std::string& directory) {
  const UniqueFd file(::open((directory + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  return file && write_all(file.get(), "1");
}

bool wait_until_empty(const std::string& directory, Instant deadline) {
  const UniqueFd events(::open((directory + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  if (!events) return errno == ENOENT;
  while (true) {
    char text[256];
    const ssize_t n = retry_eintr([&] { return ::pread(events.get(), text, sizeof text, 0); });
    if (n <= 0) return false;
    if (std::string_view(text, static_cast<std::size_t>(n)).find("populated 0") != std::string_view::npos)
      return true;
    if (!wait_until_ready(events.get(), POLLPRI, deadline)) return false;
  }
}

bool remove(const std::string& directory) {
  if (::rmdir(directory.c_str()) == 0 || errno == ENOENT) return true;
  auto groups = groups_from(directory);
  for (; groups.size() > 1; groups.pop_back()) ::rmdir(groups.back().c_str());
  return ::rmdir(directory.c_str()) == 0;
}

std::vector<pid_t> clear(const std::vector<std::string>& directories, Instant deadline) {
  std::vector<pid_t> left;
  for (const std::string& directory : directories) {
    if (wait_until_empty(directory, deadline) && remove(directory)) continue;
    for (const pid_t pid : processes(directory)) left.push_back(pid);
  }
  return left;
}

}  // namespace cgroup

std::optional<std::int64_t> parse_oom_kills(std::string_view text) {
  constexpr std::string_view kName = "oom_kill ";
  for (const std::string_view line : split(text, '\n'))
    if (line.starts_with(kName))
      if (const auto kills = parse_integer("", line.substr(kName.size()), 0, INT64_MAX)) return *kills;
  return std::nullopt;
}

OomKillCounter::OomKillCounter(const std::string& groups, const std::string& root) {
  const std::string text = read_file(groups, kMaxGroupFileBytes).value_or("");
  // Where the controller is bound to version 1 the unified hierarchy has no such file.
  for (const auto& [controller, file] :
       {std::pair{"memory", "memory.oom_control"}, std::pair{"", "memory.events"}})
    for (const std::string& directory : cgroup::candidates(text, controller, root)) {
      path_ = fmt::format("{}/{}", directory, file);
      const auto kills = count();
      if (!kills) continue;
      seen_ = *kills;
      return;
    }
}

std::int64_t OomKillCounter::take_new() {
  const std::int64_t now = count().value_or(seen_);
  return now - std::exchange(seen_, now);
}

std::optional<std::int64_t> OomKillCounter::count() const {
  return parse_oom_kills(read_file(path_, kMaxGroupFileBytes).value_or(""));
}

std::optional<std::string> why_not_delegated(const std::string& directory, bool required) {
  if (directory.empty()) return "no control groups of version 2 are mounted here";
  if (::access(directory.c_str(), W_OK) != 0 || ::access((directory + "/cgroup.procs").c_str(), W_OK) != 0)
    return fmt::format("{} was not delegated to this user (systemd-run --user --scope -p Delegate=yes does)",
                       directory);
  if (required || ::geteuid() != 0 || is_top(directory)) return std::nullopt;
  for (std::string at = directory;; at.resize(at.rfind('/'))) {
    if (marked_delegated(at)) return std::nullopt;
    if (is_top(at) || at.rfind('/') == std::string::npos || at.rfind('/') == 0) break;
  }
  return fmt::format("{} was not delegated to muster (--cgroup=required uses it anyway)", directory);
}

std::string plan_of_cgroups(CgroupMode mode) {
  if (mode == CgroupMode::kOff) return "control groups: none (--cgroup=off)\n";
  const std::string own = cgroup::own_directory();
  const auto reason = why_not_delegated(own, mode == CgroupMode::kRequired);
  return reason ? fmt::format("control groups: none: {}\n", *reason)
                : fmt::format("control groups: one for each worker, below {}\n", own);
}

Result<void> WorkerCgroups::open(CgroupMode mode, std::string_view token, Guardian& guardian) {
  mode_ = mode;
  if (mode == CgroupMode::kOff) return {};
  const std::string own = cgroup::own_directory();
  reason_ = why_not_delegated(own, mode == CgroupMode::kRequired).value_or("");
  if (reason_.empty()) {
    const std::string directory = fmt::format("{}/muster-{}", own, token);
    if (::mkdir(directory.c_str(), 0755) != 0) {
      reason_ = fmt::format("mkdir {}: {}", directory, errno_text(errno));
    } else if (::access((directory + "/cgroup.kill").c_str(), W_OK) != 0) {
      ::rmdir(directory.c_str());
      reason_ = "the kernel has no cgroup.kill (Linux 5.14)";
    } else {
      directory_ = directory;
      guardian.end_cgroup(directory);
    }
  }
  if (mode == CgroupMode::kRequired && !enabled()) return usage("--cgroup=required: " + reason_);
  return {};
}

WorkerCgroups::~WorkerCgroups() {
  if (directory_.empty()) return;
  cgroup::kill(directory_);
  cgroup::wait_until_empty(directory_, SteadyClock::now() + kLastTimeout);
  cgroup::remove(directory_);
}

Result<UniqueFd> WorkerCgroups::add(int local_rank) {
  const std::string directory = fmt::format("{}/{}-{}", directory_, number_++, local_rank);
  if (::mkdir(directory.c_str(), 0755) != 0) return fail(errno_error("mkdir " + directory, errno));
  workers_.push_back(directory);
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fail(errno_error("open " + directory, errno));
  return fd;
}

void WorkerCgroups::kill() const {
  if (enabled()) cgroup::kill(directory_);
}

}  // namespace muster::launcher
