// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/cores.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <sched.h>
#include <string_view>

#include <climits>

#include "launcher/hardware/small_files.h"
#include "launcher/text/rank_ranges.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

/// "max 100000" or "400000 100000"; version 1 has two files with one number each, -1 for no limit.
int cpus_of(const std::string& quota, const std::string& period) {
  const long long most = std::atoll(quota.c_str());
  const long long every = std::atoll(period.c_str());
  if (most <= 0 || every <= 0) return 0;
  return static_cast<int>(std::clamp<long long>((most + every - 1) / every, 1, kMaxCpu));
}

int limit_at(const std::string& directory, bool version_2) {
  if (version_2) {
    const std::string line = first_line(directory + "/cpu.max");
    const auto blank = line.find(' ');
    return blank == std::string::npos ? 0 : cpus_of(line, line.substr(blank));
  }
  return cpus_of(first_line(directory + "/cpu.cfs_quota_us"), first_line(directory + "/cpu.cfs_period_us"));
}

/// The strictest limit from the group up to the mount's root. In a container the path may be the host's,
/// which leads nowhere; the root is then the container's own group.
int strictest(const std::string& mount, std::string path, bool version_2) {
  if (path == "/") path.clear();
  int out = 0;
  while (true) {
    if (const int limit = limit_at(mount + path, version_2); limit > 0 && (out == 0 || limit < out))
      out = limit;
    const auto slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return out;
    path.resize(slash);
  }
}

}  // namespace

CpuSet intersection(const CpuSet& a, const CpuSet& b) {
  CpuSet out;
  std::ranges::set_intersection(a, b, std::back_inserter(out));
  return out;
}

CpuSet sorted_union(const CpuSet& a, const CpuSet& b) {
  CpuSet out;
  std::ranges::set_union(a, b, std::back_inserter(out));
  return out;
}

std::vector<unsigned long> to_mask(const CpuSet& set) {
  std::vector<unsigned long> out(set.empty() ? 1 : static_cast<std::size_t>(set.back()) / kWordBits + 1);
  for (const int cpu : set) {
    const auto bit = static_cast<std::size_t>(cpu);
    out[bit / kWordBits] |= 1UL << (bit % kWordBits);
  }
  return out;
}

CpuSet current_affinity() {
  // The kernel refuses a mask that is shorter than its own (EINVAL), and does not tell how long that is.
  for (std::size_t cpus = 1024; cpus <= kMaxCpu + 1; cpus *= 4) {
    std::vector<unsigned long> words(cpus / kWordBits);
    if (::sched_getaffinity(0, words.size() * sizeof(unsigned long),
                            reinterpret_cast<cpu_set_t*>(words.data())) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    CpuSet out;
    for (std::size_t bit = 0; bit < cpus; ++bit)
      if ((words[bit / kWordBits] >> (bit % kWordBits) & 1) != 0) out.push_back(static_cast<int>(bit));
    return out;
  }
  return {};
}

int count_cpus() {
  return std::max(1, static_cast<int>(current_affinity().size()));
}

int cpu_quota(const CoreFiles& files) {
  const auto text = read_file(files.own_cgroups, 64 * 1024);
  if (!text) return 0;
  int out = 0;
  for (std::string_view line : split(*text, '\n')) {  // "4:cpu,cpuacct:/path", "0::/path"
    take_front(line, ':');
    const std::string controllers(take_front(line, ':'));
    if (line.empty()) continue;
    const std::vector<std::string_view> names = split(controllers, ',');
    const bool version_2 = controllers.empty();
    if (!version_2 && std::ranges::find(names, std::string_view("cpu")) == names.end()) continue;
    const std::string mount = version_2 ? files.cgroup_root : files.cgroup_root + "/" + controllers;
    const int limit = strictest(mount, std::string(line), version_2);
    if (limit > 0 && (out == 0 || limit < out)) out = limit;
  }
  return out;
}

CpuBudget read_cpu_budget(const CoreFiles& files) {
  CpuBudget out;
  out.allowed = count_cpus();
  out.online =
      static_cast<int>(parse_ranges(first_line(files.sys_cpus + "/online")).value_or(CpuSet{}).size());
  out.quota = cpu_quota(files);
  return out;
}

int count_cores(const CoreFiles& files) {
  CpuSet left = current_affinity();
  int cores = 0;
  while (!left.empty()) {
    const std::string file =
        files.sys_cpus + "/cpu" + std::to_string(left.front()) + "/topology/thread_siblings_list";
    const CpuSet siblings = parse_ranges(first_line(file)).value_or(CpuSet{});
    ++cores;
    const int self = left.front();
    std::erase_if(left, [&](int cpu) { return cpu == self || std::ranges::binary_search(siblings, cpu); });
  }
  return std::max(1, cores);
}

}  // namespace muster::launcher
