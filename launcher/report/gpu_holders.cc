// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/gpu_holders.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <pwd.h>
#include <set>
#include <signal.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/hardware/small_files.h"
#include "launcher/process/process_stat.h"
#include "launcher/text/line_splitter.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/process_usage.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMostProcessBytes = std::size_t{4} << 20;  // of an environment or a command line
constexpr int kMostAbove = 1000;  // processes above one: a loop would be a race
constexpr std::size_t kMostHolders = 1000;

constexpr std::string_view kAgentName = "muster";  // and a version, perhaps

using Processes = std::map<std::int32_t, SeenProcess>;

/// musterctl and musterd start no workers.
bool is_agent(const SeenProcess& process) {
  return process.name.starts_with(kAgentName) && process.name != "musterctl" && process.name != "musterd";
}

/// Agents are given the orphans of their workers, so that all that is theirs is below them while they live.
/// What is below the first process without passing an agent has none; any doubt is no such proof.
bool is_left_behind(const SeenProcess& holder, const Processes& processes) {
  const SeenProcess* at = &holder;
  for (int steps = 0; steps < kMostAbove && at->pid != 1; ++steps) {
    const auto parent = processes.find(at->parent);
    if (parent == processes.end() || is_agent(parent->second)) return false;
    at = &parent->second;
  }
  return at->pid == 1;
}

std::string user_name(std::uint32_t uid) {
  const passwd* const user = ::getpwuid(uid);
  return user != nullptr ? user->pw_name : fmt::format("{}", uid);
}

std::int64_t boot_time() {
  timespec since_boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return std::time(nullptr) - since_boot.tv_sec;
}

/// Who it is; `whole`: and what it does.
std::optional<SeenProcess> see(std::int32_t pid, bool whole) {
  const auto stat = read_process_stat(pid);
  struct stat owner {};
  if (!stat || ::stat(fmt::format("/proc/{}", pid).c_str(), &owner) != 0) return std::nullopt;
  SeenProcess out;
  out.pid = pid;
  out.parent = stat->parent;
  out.start_ticks = stat->start_ticks;
  out.state = stat->state;
  out.uid = owner.st_uid;
  // An agent is one under another name, too.
  std::error_code unknown;
  const std::string program =
      std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), unknown).filename();
  out.name = program.starts_with(kAgentName) ? program : stat->name;
  if (!whole) return out;
  out.user = user_name(out.uid);
  out.since = boot_time() + static_cast<std::int64_t>(stat->start_ticks) / ::sysconf(_SC_CLK_TCK);
  std::string command = read_file(fmt::format("/proc/{}/cmdline", pid), kMostProcessBytes).value_or("");
  std::ranges::replace(command, '\0', ' ');
  out.command = one_clean_line(command);
  if (out.command.empty()) out.command = fmt::format("[{}]", one_clean_line(stat->name));
  const std::string environment =
      read_file(fmt::format("/proc/{}/environ", pid), kMostProcessBytes).value_or("");
  for (const std::string_view variable : split(environment, '\0')) {
    const auto take = [&](std::string_view name, std::string& to) {
      if (variable.starts_with(name) && variable.substr(name.size()).starts_with('='))
        to = one_clean_line(variable.substr(name.size() + 1));
    };
    take(env::kRank, out.rank);
    take(env::kRunId, out.run_id);
    take(env::kLineage, out.lineage);
  }
  return out;
}

/// The holders, and all above them as far as they are visible.
Processes see_processes(const std::vector<GpuUse>& uses) {
  Processes out;
  for (const GpuUse& use : uses)
    if (auto process = see(use.pid, true)) out.insert_or_assign(use.pid, *std::move(process));
  for (const GpuUse& use : uses) {
    for (auto at = out.find(use.pid); at != out.end();) {
      const std::int32_t parent = at->second.parent;
      auto process = parent > 0 && !out.contains(parent) ? see(parent, false) : std::nullopt;
      at = process ? out.emplace(parent, *std::move(process)).first : out.end();
    }
  }
  return out;
}

/// Whose the processes are, by what /proc shows of them now.
std::vector<GpuHolder> judge_holders(std::vector<GpuUse> uses) {
  uses.resize(std::min(uses.size(), kMostHolders));
  const Processes processes = see_processes(uses);
  std::vector<GpuHolder> out;
  for (GpuUse& use : uses) {
    GpuHolder& holder = out.emplace_back();
    holder.use = std::move(use);
    const auto found = processes.find(holder.use.pid);
    if (found == processes.end()) {
      holder.process.pid = holder.use.pid;
      holder.kind = HolderKind::kUnseen;
      continue;
    }
    holder.process = found->second;
    if (holder.process.state == 'Z' || holder.process.state == 'X') {
      holder.kind = HolderKind::kZombie;
    } else if (!holder.process.lineage.empty()) {
      const bool left = is_left_behind(holder.process, processes);
      holder.kind = left ? HolderKind::kLeftBehind : HolderKind::kWorker;
      holder.to_free = left && holder.process.uid == ::getuid() && holder.process.pid > 1;
    }
  }
  std::ranges::stable_sort(out, {}, [](const GpuHolder& it) { return std::pair(it.use.gpu, it.use.pid); });
  return out;
}

}  // namespace

std::string describe(const GpuUse& use) {
  const std::string memory =
      use.bytes == 0 ? "memory" : fmt::format("{:.1f} GiB", static_cast<double>(use.bytes) / (1 << 30));
  return fmt::format("holds {} of GPU {}{}", memory, use.gpu,
                     use.uuid.empty() ? "" : fmt::format(" ({})", use.uuid));
}

std::string describe(const GpuHolder& holder) {
  const SeenProcess& process = holder.process;
  std::string who;
  if (holder.kind == HolderKind::kUnseen) {
    who = "not visible here: it has ended, or is in another PID namespace";
  } else {
    who = process.user;
    if (!process.rank.empty()) who += fmt::format(", rank {}", process.rank);
    if (!process.run_id.empty()) who += fmt::format(" of {}", process.run_id);
    if (holder.kind == HolderKind::kZombie)
      who += fmt::format(", a zombie of process {}", process.parent);
    else if (holder.kind != HolderKind::kWorker)
      who += holder.kind == HolderKind::kForeign ? ", foreign" : ", left behind by an agent that is gone";
    who += fmt::format(": {}", process.command);
  }
  return fmt::format("pid {} ({}) {}", process.pid, who, describe(holder.use));
}

std::vector<GpuUse> gpu_uses(const Nvml& nvml) {
  std::vector<GpuUse> out;
  for (unsigned i = 0; i < nvml.count().value_or(0); ++i) {
    const Nvml::Device device = nvml.device(i);
    if (device == nullptr) continue;
    for (const Nvml::Process& process : nvml.processes(device))
      out.push_back({static_cast<std::int32_t>(i), nvml.uuid(device), static_cast<std::int32_t>(process.pid),
                     process.bytes});
  }
  return out;
}

std::vector<GpuHolder> find_gpu_holders(const Nvml& nvml) {
  return judge_holders(gpu_uses(nvml));
}

std::vector<GpuHolder> find_gpu_holders_by_files() {
  constexpr std::string_view kDeviceFiles = "/dev/nvidia";  // a number follows
  std::set<std::pair<std::int32_t, std::int32_t>> open;     // device and process
  for (const pid_t pid : list_pids()) {
    const std::string directory = fmt::format("/proc/{}/fd", pid);
    for (const std::string& number : list_directory(directory)) {
      std::error_code unknown;
      const std::string path =
          std::filesystem::read_symlink(fmt::format("{}/{}", directory, number), unknown);
      if (!path.starts_with(kDeviceFiles)) continue;
      if (const auto device = parse_integer("", path.substr(kDeviceFiles.size()), 0, INT32_MAX))
        open.emplace(static_cast<std::int32_t>(*device), pid);
    }
  }
  std::vector<GpuUse> uses;
  uses.reserve(open.size());
  for (const auto& [device, pid] : open) uses.push_back({device, {}, pid, 0});
  return judge_holders(std::move(uses));
}

std::vector<EndedHolder> end_holders(const std::vector<GpuHolder>& holders, Millis timeout) {
  std::vector<EndedHolder> out;
  std::vector<UniqueFd> handles;  // of each; empty: it is settled
  std::set<std::int32_t> pids;
  for (const GpuHolder& holder : holders) {
    if (!holder.to_free || !pids.insert(holder.use.pid).second) continue;
    EndedHolder& one = out.emplace_back();
    one.pid = holder.use.pid;
    one.ended = true;
    one.text = "has ended by itself";
    UniqueFd& process = handles.emplace_back(open_pidfd(holder.use.pid));
    if (!process) continue;
    // The handle is there: what it means is looked at again now.
    const GpuHolder now = judge_holders({holder.use}).front();
    if (now.to_free && now.process.start_ticks == holder.process.start_ticks) continue;
    one = {holder.use.pid, false, "is not what it was, and was left alone"};
    process.reset();
  }
  for (const auto& [signal, name] : {std::pair(SIGTERM, "SIGTERM"), std::pair(SIGKILL, "SIGKILL")}) {
    for (std::size_t i = 0; i < handles.size(); ++i)
      if (handles[i] && !send_signal(handles[i].get(), signal) && errno != ESRCH) {
        out[i] = {out[i].pid, false, errno_error(fmt::format("was not ended: {}", name), errno).message};
        handles[i].reset();
      }
    const Instant deadline = SteadyClock::now() + timeout;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      if (!handles[i]) continue;
      if (wait_for_end(handles[i].get(), deadline)) {
        out[i].text = fmt::format("was ended by {}", name);
        handles[i].reset();
      } else if (signal == SIGKILL) {
        out[i] = {out[i].pid, false, "does not end, as if the driver held it: SIGKILL has no effect"};
      }
    }
  }
  return out;
}

}  // namespace muster::launcher
