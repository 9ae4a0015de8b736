// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/blocked_write.h"

#include <charconv>
#include <filesystem>
#include <string_view>
#include <sys/syscall.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxBytes = 64 * 1024;
constexpr int kMaxDepth = 4;      // a script that runs a script
constexpr int kMaxThreads = 512;  // of one process

template <class Number>
Number number_at(std::string_view text, int base = 10) {
  Number out{};
  std::from_chars(text.data(), text.data() + text.size(), out, base);
  return out;
}

std::optional<std::string> read_proc(pid_t process, pid_t thread, std::string_view name) {
  auto text = read_file(fmt::format("/proc/{}/task/{}/{}", process, thread, name), kMaxBytes);
  if (!text) return std::nullopt;
  return *std::move(text);
}

std::uint64_t switches_of(pid_t process, pid_t thread) {
  constexpr std::string_view kName = "\nvoluntary_ctxt_switches:\t";
  const auto status = read_proc(process, thread, "status");
  const auto at = status ? status->find(kName) : std::string::npos;
  return at == std::string::npos
             ? 0
             : number_at<std::uint64_t>(std::string_view(*status).substr(at + kName.size()));
}

/// The number of the call that the thread sleeps in; -1: it runs, or is not shown.
long call_of(std::string_view line) {
  return line.empty() || line[0] < '0' || line[0] > '9' ? -1 : number_at<long>(line);
}

std::optional<BlockedWrite> of_thread(pid_t process, pid_t thread, std::string line) {
  const long call = call_of(line);
  if (call != SYS_write && call != SYS_writev) return std::nullopt;
  const auto blank = line.find(" 0x");
  if (blank == std::string::npos) return std::nullopt;
  const int fd = number_at<int>(std::string_view(line).substr(blank + 3), 16);
  if (fd != 1 && fd != 2) return std::nullopt;
  return BlockedWrite{process,
                      thread,
                      fd,
                      std::move(line),
                      switches_of(process, thread),
                      descriptor_target(std::to_string(process), fd)};
}

std::optional<BlockedWrite> find(pid_t pid, bool all_threads, int depth) {
  auto line = read_proc(pid, pid, "syscall");
  if (!line) return std::nullopt;
  const long call = call_of(*line);
  if (auto found = of_thread(pid, pid, *std::move(line))) return found;
  if (call == SYS_wait4 || call == SYS_waitid) {
    const auto children = depth < kMaxDepth ? read_proc(pid, pid, "children") : std::nullopt;
    for (std::string_view rest = children ? *children : std::string_view(); !rest.empty();) {
      if (auto found = find(number_at<pid_t>(rest), all_threads, depth + 1)) return found;
      const auto blank = rest.find(' ');
      rest.remove_prefix(blank == std::string_view::npos ? rest.size() : blank + 1);
    }
    return std::nullopt;
  }
  if (!all_threads) return std::nullopt;
  std::error_code error;
  int left = kMaxThreads;
  const std::filesystem::directory_iterator threads(fmt::format("/proc/{}/task", pid), error);
  for (auto at = begin(threads); !error && at != end(threads) && left > 0; at.increment(error), --left) {
    const auto thread = number_at<pid_t>(at->path().filename().native());
    if (thread == pid) continue;
    if (auto of = read_proc(pid, thread, "syscall"))
      if (auto found = of_thread(pid, thread, *std::move(of))) return found;
  }
  return std::nullopt;
}

}  // namespace

std::string descriptor_target(std::string_view process, int fd) {
  std::error_code error;
  return std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", process, fd), error).native();
}

std::optional<BlockedWrite> find_blocked_write(pid_t pid, bool all_threads) {
  return find(pid, all_threads, 0);
}

}  // namespace muster::launcher
