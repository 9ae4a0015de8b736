// SPDX-License-Identifier: Apache-2.0
// MemoryKills: how many processes of this process' control group the kernel has killed for want of memory:
// oom_kill in memory.events (version 2) or memory.oom_control (version 1). Read before and after, the
// difference says that a SIGKILL was the kernel's. Where there is no such file nothing is known, which is no
// error. cgroup_memory_file is pure. Owned by PostMortem. Source: cgroup-v2 in the kernel's administration
// guide; cgroups(7), proc(5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::launcher {

/// From the texts of /proc/self/cgroup and /proc/self/mountinfo; empty: none.
[[nodiscard]] std::string cgroup_memory_file(std::string_view cgroup, std::string_view mountinfo);

/// The number after "oom_kill" in such a file.
[[nodiscard]] std::optional<std::int64_t> parse_oom_kills(std::string_view text);

class MemoryKills {
 public:
  /// Counts from now on.
  explicit MemoryKills(const std::string& proc = "/proc/self");

  /// Since the construction or the last call.
  [[nodiscard]] std::int64_t take_new();

 private:
  [[nodiscard]] std::optional<std::int64_t> count() const;

  std::string path_;
  std::int64_t seen_ = 0;
};

}  // namespace muster::launcher
