// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/status/process_usage.h"

#include <array>
#include <filesystem>
#include <sstream>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/metrics_text.h"
#include "rendezvous/base/syscall.h"

namespace muster {
namespace {

// Fields of /proc/<pid>/stat by proc(5)'s numbers.
constexpr int kParent = 4, kUserTime = 14, kSystemTime = 15, kThreads = 20, kStarted = 22,
              kResidentPages = 24;

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

std::optional<ProcessUsage> parse_process_stat(std::string_view text, long ticks_per_second,
                                               long page_bytes) {
  // The second field is the name in parentheses, which may hold anything.
  const auto name_end = text.rfind(')');
  if (name_end == std::string_view::npos || ticks_per_second <= 0) return std::nullopt;
  std::istringstream in{std::string(text.substr(name_end + 1))};
  ProcessUsage out;
  in >> out.state;
  std::array<std::int64_t, kResidentPages + 1> fields{};
  for (std::size_t i = kParent; i < fields.size(); ++i) in >> fields[i];
  for (const int wanted : {kParent, kUserTime, kSystemTime, kThreads, kStarted, kResidentPages})
    if (in.fail() || fields[wanted] < 0) return std::nullopt;
  if (!std::in_range<int>(fields[kParent]) || !std::in_range<int>(fields[kThreads])) return std::nullopt;
  const auto seconds = [&](std::int64_t ticks) {
    return static_cast<double>(ticks) / static_cast<double>(ticks_per_second);
  };
  out.parent = static_cast<int>(fields[kParent]);
  out.threads = static_cast<int>(fields[kThreads]);
  out.cpu_seconds = seconds(fields[kUserTime]) + seconds(fields[kSystemTime]);
  out.started_s = seconds(fields[kStarted]);
  out.resident_bytes =
      static_cast<std::uint64_t>(fields[kResidentPages]) * static_cast<std::uint64_t>(page_bytes);
  return out;
}

std::optional<ProcessUsage> read_process_usage(int pid) {
  const auto text = read_file(fmt::format("/proc/{}/stat", pid), 4096);
  if (!text) return std::nullopt;
  return parse_process_stat(*text, ::sysconf(_SC_CLK_TCK), ::sysconf(_SC_PAGESIZE));
}

void put_process_metrics(MetricsText& out) {
  const auto self = read_process_usage(::getpid());
  if (self) {
    out.counter("process_cpu_seconds_total", self->cpu_seconds,
                "User and system processor time of this process.");
    out.gauge("process_resident_memory_bytes", static_cast<double>(self->resident_bytes),
              "Resident memory of this process.");
    out.gauge("process_start_time_seconds",
              seconds_of(CLOCK_REALTIME) - seconds_of(CLOCK_BOOTTIME) + self->started_s,
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
