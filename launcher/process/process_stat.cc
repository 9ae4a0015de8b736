// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/process_stat.h"

#include <charconv>
#include <cstring>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/hardware/small_files.h"
#include "rendezvous/base/process_usage.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {

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
