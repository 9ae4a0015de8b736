// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/blocked_write.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <sys/syscall.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxBytes = 64 * 1024;
constexpr int kMaxDepth = 4;  // a script that runs a script

template <class Number>
Number number_at(std::string_view text, int base = 10) {
  Number out{};
  std::from_chars(text.data(), text.data() + text.size(), out, base);
  return out;
}

std::string read_proc(pid_t process, std::string_view name) {
  return read_file(fmt::format("/proc/{0}/task/{0}/{1}", process, name), kMaxBytes).value_or("");
}

std::optional<BlockedWrite> find(pid_t pid, int depth) {
  // "1 0x2 0x7f..": the number of the call that the thread sleeps in, and its arguments; "running".
  const std::string line = read_proc(pid, "syscall");
  if (line.empty() || line[0] < '0' || line[0] > '9') return std::nullopt;
  const auto call = number_at<long>(line);
  if (call == SYS_write || call == SYS_writev) {
    const auto argument = line.find(" 0x");
    const int fd =
        argument == std::string::npos ? 0 : number_at<int>(std::string_view(line).substr(argument + 3), 16);
    return fd == 1 || fd == 2 ? std::optional(BlockedWrite{fd}) : std::nullopt;
  }
  if ((call != SYS_wait4 && call != SYS_waitid) || depth == kMaxDepth) return std::nullopt;
  const std::string children = read_proc(pid, "children");
  for (std::string_view rest = children; !rest.empty();) {
    if (auto found = find(number_at<pid_t>(rest), depth + 1)) return found;
    rest.remove_prefix(std::min(rest.find(' '), rest.size() - 1) + 1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<BlockedWrite> find_blocked_write(pid_t pid) {
  return find(pid, 0);
}

}  // namespace muster::launcher
