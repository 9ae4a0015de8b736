// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/worker_cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/process/cgroup.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kLastPatience{2};  // for what is left at the end to die of SIGKILL

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

std::optional<CgroupMode> parse_cgroup_mode(std::string_view text) {
  if (text == "auto") return CgroupMode::kAuto;
  if (text == "off") return CgroupMode::kOff;
  if (text == "required") return CgroupMode::kRequired;
  return std::nullopt;
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
  return fmt::format("{} is managed by somebody else: nobody delegated it (--cgroup=required takes it)",
                     directory);
}

std::string plan_of_cgroups(CgroupMode mode) {
  if (mode == CgroupMode::kOff) return "control groups: none (--cgroup=off)\n";
  const std::string own = cgroup::own_directory();
  const auto reason = why_not_delegated(own, mode == CgroupMode::kRequired);
  return reason ? fmt::format("control groups: none: {}\n", *reason)
                : fmt::format("control groups: one for each worker, below {}\n", own);
}

Result<WorkerCgroups> WorkerCgroups::open(CgroupMode mode, std::string_view token, Guardian& guardian,
                                          std::string_view controller) {
  WorkerCgroups out;
  out.mode_ = mode;
  if (mode == CgroupMode::kOff) return out;
  const std::string own = cgroup::own_directory();
  std::string reason = why_not_delegated(own, mode == CgroupMode::kRequired).value_or("");
  if (reason.empty()) {
    const std::string directory = fmt::format("{}/muster-{}", own, token);
    if (::mkdir(directory.c_str(), 0755) != 0) {
      reason = fmt::format("mkdir {}: {}", directory, errno_text(errno));
    } else if (::access((directory + "/cgroup.kill").c_str(), W_OK) != 0) {
      ::rmdir(directory.c_str());
      reason = "the kernel has no cgroup.kill (Linux 5.14)";
    } else {
      out.directory_ = directory;
      guardian.end_cgroup(directory);
      out.switch_on(own, controller, guardian.pid());
    }
  }
  out.reason_ = reason;
  if (mode == CgroupMode::kRequired && !out.enabled())
    return fail(ErrorCode::kInvalidArgument, "--cgroup=required: " + reason);
  return out;
}

/// Best effort: without the controller the groups still end their processes.
void WorkerCgroups::switch_on(const std::string& own, std::string_view controller, pid_t guardian) {
  const std::string add = fmt::format("+{}", controller);
  if (!cgroup::lists(own + "/cgroup.controllers", controller)) return;
  if (!cgroup::lists(own + "/cgroup.subtree_control", controller)) {
    own_ = own;
    int error = cgroup::write(own + "/cgroup.subtree_control", add);
    if (error == EBUSY) {
      // We are in it, and perhaps we alone.
      agent_ = directory_ + "-agent";
      guardian_ = guardian;
      if (::mkdir(agent_.c_str(), 0755) != 0) {
        agent_.clear();
        return;
      }
      for (const pid_t pid : {guardian, ::getpid()})
        (void)cgroup::write(agent_ + "/cgroup.procs", std::to_string(pid));
      error = cgroup::write(own + "/cgroup.subtree_control", add);
      if (error != 0) {
        for (const pid_t pid : {guardian, ::getpid()})
          (void)cgroup::write(own + "/cgroup.procs", std::to_string(pid));
        cgroup::remove(agent_);
        agent_.clear();
      }
    }
    if (error != 0) return;
    controller_ = controller;
  }
  (void)cgroup::write(directory_ + "/cgroup.subtree_control", add);
}

WorkerCgroups::WorkerCgroups(WorkerCgroups&& other) noexcept
    : mode_(other.mode_),
      reason_(std::move(other.reason_)),
      directory_(std::exchange(other.directory_, {})),
      own_(std::move(other.own_)),
      agent_(std::exchange(other.agent_, {})),
      controller_(std::exchange(other.controller_, {})),
      guardian_(other.guardian_),
      workers_(std::move(other.workers_)),
      number_(other.number_) {}

WorkerCgroups::~WorkerCgroups() {
  if (directory_.empty()) return;
  cgroup::kill(directory_);
  cgroup::wait_until_empty(directory_, SteadyClock::now() + kLastPatience);
  cgroup::remove(directory_);
  // Another launcher may have come to need it; then it is still in use, and stays on.
  if (!controller_.empty())
    (void)cgroup::write(own_ + "/cgroup.subtree_control", fmt::format("-{}", controller_));
  if (agent_.empty()) return;
  for (const pid_t pid : {guardian_, ::getpid()})
    (void)cgroup::write(own_ + "/cgroup.procs", std::to_string(pid));
  cgroup::remove(agent_);
}

Result<UniqueFd> WorkerCgroups::add(int local_rank) {
  const std::string directory = fmt::format("{}/{}-{}", directory_, number_++, local_rank);
  if (::mkdir(directory.c_str(), 0755) != 0) return fail(errno_error("mkdir " + directory, errno));
  const auto index = static_cast<std::size_t>(local_rank);
  if (workers_.size() <= index) workers_.resize(index + 1);
  workers_[index] = directory;
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fail(errno_error("open " + directory, errno));
  return fd;
}

void WorkerCgroups::kill() const {
  if (enabled()) cgroup::kill(directory_);
}

std::optional<std::int64_t> WorkerCgroups::memory_kills(int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  if (index >= workers_.size() || workers_[index].empty()) return std::nullopt;
  return cgroup::memory_kills(workers_[index]);
}

std::vector<pid_t> WorkerCgroups::clear(Instant deadline) {
  std::vector<pid_t> left;
  for (const std::string& directory : workers_) {
    if (directory.empty()) continue;
    if (cgroup::wait_until_empty(directory, deadline) && cgroup::remove(directory)) continue;
    for (const pid_t pid : cgroup::processes(directory)) left.push_back(pid);
  }
  workers_.clear();
  return left;
}

}  // namespace muster::launcher
