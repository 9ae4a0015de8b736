// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/process_usage.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/metrics_text.h"
#include "rendezvous/base/syscall.h"

namespace muster {
namespace {

// Fields by proc(5)'s numbers.
constexpr std::size_t kParent = 4, kUserTime = 14, kSystemTime = 15, kThreads = 20, kStarted = 22,
                      kResidentPages = 24, kArgumentsBegin = 48, kArgumentsEnd = 49;

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

std::optional<ProcessStat> parse_process_stat(std::string_view text, long ticks_per_second, long page_bytes) {
  // "77 (a name) with ) in it) S 1 ...": after the last parenthesis. Without a stream, whose pages and locale
  // cost each process that muster forks 0.5 MB.
  const auto name = text.find('(') + 1, name_end = text.rfind(')');
  if (name == 0 || name_end == std::string_view::npos || name_end + 4 >= text.size()) return std::nullopt;
  std::array<std::int64_t, kArgumentsEnd + 1> fields{};
  const char* at = text.data() + name_end + 4;
  const char* const end = text.data() + text.size();
  for (std::size_t i = kParent; i < fields.size(); ++i) {
    const bool known = std::from_chars(at, end, fields[i]).ec == std::errc{} && fields[i] >= 0;
    for (const std::size_t wanted : {kParent, kUserTime, kSystemTime, kThreads, kStarted, kResidentPages})
      if (i == wanted && !known) return std::nullopt;
    at = std::min(std::find(at, end, ' ') + 1, end);
  }
  if (!std::in_range<int>(fields[kParent]) || !std::in_range<int>(fields[kThreads])) return std::nullopt;
  ProcessStat out;
  std::from_chars(text.data(), end, out.pid);
  out.name = text.substr(name, name_end - name);
  out.state = text[name_end + 2];
  out.parent = static_cast<pid_t>(fields[kParent]);
  out.threads = static_cast<int>(fields[kThreads]);
  out.cpu_seconds = (static_cast<double>(fields[kUserTime]) + static_cast<double>(fields[kSystemTime])) /
                    static_cast<double>(ticks_per_second);
  out.start_ticks = static_cast<std::uint64_t>(fields[kStarted]);
  out.resident_bytes =
      static_cast<std::uint64_t>(fields[kResidentPages]) * static_cast<std::uint64_t>(page_bytes);
  out.arguments_begin = static_cast<std::uintptr_t>(fields[kArgumentsBegin]);
  out.arguments_end = static_cast<std::uintptr_t>(fields[kArgumentsEnd]);
  return out;
}

std::optional<ProcessStat> read_process_stat(pid_t pid, pid_t thread) {
  if (pid == 0) pid = ::getpid();
  const auto text = read_file(
      thread == 0 ? fmt::format("/proc/{}/stat", pid) : fmt::format("/proc/{}/task/{}/stat", pid, thread),
      4096);
  if (!text) return std::nullopt;
  return parse_process_stat(*text, ::sysconf(_SC_CLK_TCK), ::sysconf(_SC_PAGESIZE));
}

void put_process_metrics(MetricsText& out) {
  const auto self = read_process_stat(0);
  if (self) {
    const double started_s =
        static_cast<double>(self->start_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
    out.counter("process_cpu_seconds_total", self->cpu_seconds,
                "User and system processor time of this process.");
    out.gauge("process_resident_memory_bytes", static_cast<double>(self->resident_bytes),
              "Resident memory of this process.");
    out.gauge("process_start_time_seconds",
              seconds_of(CLOCK_REALTIME) - seconds_of(CLOCK_BOOTTIME) + started_s,
              "When this process was started, since the epoch.");
  }
  std::error_code error;
  const auto descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd", error), {});
  if (!error)  // one of them is the folder's own
    out.gauge("process_open_fds", static_cast<double>(descriptors - 1),
              "Open file descriptors of this process.");
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    out.gauge("process_max_fds", static_cast<double>(limit.rlim_cur), "Limit of open file descriptors.");
}

}  // namespace muster
