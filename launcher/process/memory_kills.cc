// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/memory_kills.h"

#include <charconv>
#include <utility>
#include <vector>

#include "launcher/process/cgroup.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

/// The next piece up to `separator`, taken off the front of `rest`.
std::string_view next(std::string_view& rest, char separator) {
  const auto end = rest.find(separator);
  const std::string_view out = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return out;
}

bool lists(std::string_view names, std::string_view name) {
  while (!names.empty())
    if (next(names, ',') == name) return true;
  return false;
}

/// A path of the hierarchy as it is seen below a mount of a part of it.
std::string below_mount(std::string_view mount, std::string_view root, std::string_view path) {
  std::string out(mount);
  if (root != "/" && path.starts_with(root)) path.remove_prefix(root.size());
  if (path.empty() || path == "/") return out;
  return out.append(path);
}

struct Mount {
  std::string_view root, point, type, options;
};

std::vector<Mount> mounts_of(std::string_view mountinfo) {
  std::vector<Mount> out;
  while (!mountinfo.empty()) {
    std::string_view line = next(mountinfo, '\n');
    Mount mount;
    for (int i = 0; i < 3; ++i) next(line, ' ');
    mount.root = next(line, ' ');
    mount.point = next(line, ' ');
    while (!line.empty() && next(line, ' ') != "-") {
    }
    mount.type = next(line, ' ');
    next(line, ' ');
    mount.options = next(line, ' ');
    if (mount.type.starts_with("cgroup")) out.push_back(mount);
  }
  return out;
}

}  // namespace

std::string cgroup_memory_file(std::string_view cgroup, std::string_view mountinfo) {
  const std::vector<Mount> mounts = mounts_of(mountinfo);
  for (std::string_view rest = cgroup; !rest.empty();) {
    std::string_view path = next(rest, '\n');
    next(path, ':');
    const std::string_view controllers = next(path, ':');
    for (const Mount& mount : mounts)
      // Where the controller is bound to version 1 the unified hierarchy has no such file.
      if (mount.type == "cgroup" && lists(controllers, "memory") && lists(mount.options, "memory"))
        return below_mount(mount.point, mount.root, path) + "/memory.oom_control";
  }
  const auto unified = cgroup::candidates(cgroup, mountinfo);
  return unified.empty() ? std::string() : unified.front() + "/memory.events";
}

std::vector<std::string> cgroup::candidates(std::string_view cgroup, std::string_view mountinfo) {
  std::vector<std::string> out;
  while (!cgroup.empty()) {
    std::string_view path = next(cgroup, '\n');
    const std::string_view number = next(path, ':');
    if (number != "0" || !next(path, ':').empty()) continue;
    for (const Mount& mount : mounts_of(mountinfo))
      if (mount.type == "cgroup2") out.push_back(below_mount(mount.point, mount.root, path));
  }
  return out;
}

std::optional<std::int64_t> parse_oom_kills(std::string_view text) {
  constexpr std::string_view kName = "oom_kill ";
  while (!text.empty()) {
    std::string_view line = next(text, '\n');
    if (!line.starts_with(kName)) continue;
    line.remove_prefix(kName.size());
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error == std::errc{}) return value;
  }
  return std::nullopt;
}

MemoryKills::MemoryKills(const std::string& proc) {
  const auto cgroup = read_file(proc + "/cgroup", kMaxFileBytes);
  const auto mountinfo = read_file(proc + "/mountinfo", kMaxFileBytes);
  if (cgroup && mountinfo) path_ = cgroup_memory_file(*cgroup, *mountinfo);
  seen_ = count().value_or(0);
}

std::int64_t MemoryKills::take_new() {
  const std::int64_t now = count().value_or(seen_);
  return now - std::exchange(seen_, now);
}

std::optional<std::int64_t> MemoryKills::count() const {
  if (path_.empty()) return std::nullopt;
  const auto text = read_file(path_, kMaxFileBytes);
  return text ? parse_oom_kills(*text) : std::nullopt;
}

}  // namespace muster::launcher
