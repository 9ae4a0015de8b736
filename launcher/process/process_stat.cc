// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/process_stat.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/hardware/small_files.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxStatBytes = 4096;
constexpr std::size_t kParent = 4, kStart = 22, kArgumentsBegin = 48,
                      kArgumentsEnd = 49;  // fields, from 1 on

}  // namespace

std::optional<ProcessStat> read_process_stat(pid_t pid, pid_t thread) {
  if (pid == 0) pid = ::getpid();
  const auto path =
      thread == 0 ? fmt::format("/proc/{}/stat", pid) : fmt::format("/proc/{}/task/{}/stat", pid, thread);
  const auto text = read_file(path, kMaxStatBytes);
  if (!text) return std::nullopt;
  // "77 (a name) with ) in it) S 1 ...": after the last parenthesis. Without a stream, whose pages and locale
  // cost each process that muster forks 0.5 MB.
  const auto name = text->find('(') + 1;
  const auto name_end = text->rfind(')');
  if (name == 0 || name_end == std::string::npos || name_end + 4 >= text->size()) return std::nullopt;
  ProcessStat out;
  out.pid = thread == 0 ? pid : thread;
  out.name = text->substr(name, name_end - name);
  out.state = (*text)[name_end + 2];
  const char* at = text->data() + name_end + 4;
  const char* const end = text->data() + text->size();
  for (std::size_t field = kParent; field <= kArgumentsEnd && at < end; ++field) {
    if (field == kParent) std::from_chars(at, end, out.parent);
    if (field == kStart) std::from_chars(at, end, out.start_ticks);
    if (field == kArgumentsBegin) std::from_chars(at, end, out.arguments_begin);
    if (field == kArgumentsEnd) std::from_chars(at, end, out.arguments_end);
    at = std::min(std::find(at, end, ' ') + 1, end);
  }
  return out;
}

std::vector<pid_t> parse_pids(std::string_view text) {
  std::vector<pid_t> out;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end; ++at) {
    pid_t pid = 0;
    at = std::from_chars(at, end, pid).ptr;
    if (pid > 0) out.push_back(pid);
  }
  return out;
}

std::vector<pid_t> list_pids(const std::string& directory) {
  std::vector<pid_t> out;
  for (const std::string& name : list_directory(directory))
    if (const int pid = std::atoi(name.c_str()); pid > 0) out.push_back(pid);
  return out;
}

bool send_signal(int pidfd, int signal) {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0U) == 0;
}

bool wait_for_end(int pidfd, Instant deadline) {
  return wait_until_ready(pidfd, POLLIN, deadline);
}

std::optional<siginfo_t> reap_child(int pidfd) {
  siginfo_t info{};
  const int result = retry_eintr([&] {
    return ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG);
  });
  return result == 0 ? std::optional(info) : std::nullopt;
}

void set_process_title(const char* title) {
  ::prctl(PR_SET_NAME, title, 0, 0, 0);
  const auto own = read_process_stat(0);
  if (!own || own->arguments_begin == 0 || own->arguments_end <= own->arguments_begin) return;
  const std::size_t size = own->arguments_end - own->arguments_begin;
  auto* const arguments = reinterpret_cast<char*>(own->arguments_begin);
  std::memset(arguments, 0, size);
  std::string_view(title).copy(arguments, size - 1);
}

}  // namespace muster::launcher
