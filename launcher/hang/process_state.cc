// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/process_state.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <sys/syscall.h>

#include <fmt/format.h>

#include "launcher/process/process_stat.h"
#include "launcher/text/line_splitter.h"
#include "rendezvous/base/process_usage.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxStateBytes = 65536;

struct Call {
  long number;
  std::string_view name;
  bool of_descriptor;  // its first argument
};

/// Those in which a program can wait for long.
constexpr std::array kCalls = {
    Call{SYS_read, "read", true},
    Call{SYS_write, "write", true},
    Call{SYS_recvfrom, "recvfrom", true},
    Call{SYS_recvmsg, "recvmsg", true},
    Call{SYS_sendto, "sendto", true},
    Call{SYS_sendmsg, "sendmsg", true},
    Call{SYS_accept, "accept", true},
    Call{SYS_accept4, "accept4", true},
    Call{SYS_connect, "connect", true},
    Call{SYS_ioctl, "ioctl", true},
    Call{SYS_flock, "flock", true},
    Call{SYS_fsync, "fsync", true},
    Call{SYS_fdatasync, "fdatasync", true},
    Call{SYS_openat, "openat", false},
    Call{SYS_futex, "futex", false},
    Call{SYS_ppoll, "ppoll", false},
    Call{SYS_pselect6, "pselect6", false},
    Call{SYS_epoll_pwait, "epoll_pwait", true},
#ifdef SYS_poll
    Call{SYS_poll, "poll", false},
    Call{SYS_select, "select", false},
    Call{SYS_epoll_wait, "epoll_wait", true},
    Call{SYS_pause, "pause", false},
#endif
    Call{SYS_nanosleep, "nanosleep", false},
    Call{SYS_clock_nanosleep, "clock_nanosleep", false},
    Call{SYS_wait4, "wait4", false},
    Call{SYS_waitid, "waitid", false},
};

const Call* find_call(long number) {
  const auto* const found = std::ranges::find(kCalls, number, &Call::number);
  return found == kCalls.end() ? nullptr : found;
}

std::string target_of(pid_t pid, long fd) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", pid, fd), error);
  return error ? std::string() : one_clean_line(target.string());
}

std::string describe(pid_t pid, const CurrentCall& current) {
  const Call* const call = find_call(current.number);
  if (call == nullptr || !call->of_descriptor) return fmt::format("{}()", call_name(current.number));
  const std::string target = target_of(pid, current.first_argument);
  return target.empty() ? fmt::format("{}({})", call->name, current.first_argument)
                        : fmt::format("{}({} -> {})", call->name, current.first_argument, target);
}

ThreadState read_thread(pid_t pid, int id) {
  ThreadState out;
  out.id = id;
  if (const auto stat = read_process_stat(pid, id)) {
    out.name = one_clean_line(stat->name);
    out.state = stat->state;
  }
  const auto call = read_file(fmt::format("/proc/{}/task/{}/syscall", pid, id), kMaxStateBytes);
  if (const auto current = parse_current_call(call.value_or(""))) out.call = describe(pid, *current);
  const auto wait = read_file(fmt::format("/proc/{}/task/{}/wchan", pid, id), kMaxStateBytes);
  if (wait && one_clean_line(*wait) != "0") out.wait = one_clean_line(*wait);
  return out;
}

}  // namespace

std::string call_name(long number) {
  const Call* const call = find_call(number);
  return call != nullptr ? std::string(call->name) : fmt::format("system call {}", number);
}

std::optional<CurrentCall> parse_current_call(std::string_view text) {
  CurrentCall out;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out.number);
  if (error != std::errc{} || out.number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(" 0x")) return std::nullopt;
  unsigned long argument = 0;
  if (std::from_chars(text.data() + 3, text.data() + text.size(), argument, 16).ec != std::errc{})
    return std::nullopt;
  out.first_argument = static_cast<int>(argument);  // descriptors are: the upper half may be anything
  return out;
}

std::vector<ThreadState> read_threads(pid_t pid, std::size_t most) {
  std::vector<pid_t> ids = list_pids(fmt::format("/proc/{}/task", pid));
  std::ranges::sort(ids, {}, [pid](int id) { return std::pair(id != pid, id); });
  std::vector<ThreadState> out;
  for (const int id : ids) {
    if (out.size() == most) break;
    out.push_back(read_thread(pid, id));
  }
  return out;
}

}  // namespace muster::launcher
