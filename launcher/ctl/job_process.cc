// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/job_process.h"

#include <algorithm>
#include <array>
#include <deque>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/process/job_registry.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {

Result<JobProcess> JobProcess::open(const JobRecord& entry) {
  JobProcess out;
  const auto gone = [&] {
    return fail(ErrorCode::kNotFound, fmt::format("{}: its process {} is gone", entry.name, entry.pid));
  };
  out.process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, entry.pid, 0U)));
  if (!out.process_) {
    if (errno == ESRCH) return gone();
    return fail(errno_error(fmt::format("pidfd_open of process {}", entry.pid), errno));
  }
  // Looked at after the handle is there: if it is the right one now, the handle is of the right one.
  if (!is_alive(entry)) return gone();
  return out;
}

Result<void> JobProcess::signal(int number) const {
  if (::syscall(SYS_pidfd_send_signal, process_.get(), number, nullptr, 0U) == 0) return {};
  if (errno == ESRCH) return fail(ErrorCode::kNotFound, "the process is gone");
  return fail(errno_error("send a signal", errno));
}

bool JobProcess::wait(Instant deadline) const {
  while (true) {
    pollfd poll{process_.get(), POLLIN, 0};
    const int n = ::poll(&poll, 1,
                         static_cast<int>(std::min<std::int64_t>(
                             time_left(deadline, SteadyClock::now()).count(), 1'000'000'000)));
    if (n > 0) return true;
    if (n == 0) return false;
  }
}

namespace {

Result<void> copy(int file) {
  std::array<char, 64 * 1024> bytes{};
  while (true) {
    const ssize_t n = retry_eintr([&] { return ::read(file, bytes.data(), bytes.size()); });
    if (n < 0) return fail(errno_error("read the job's output", errno));
    if (n == 0) return {};
    if (auto written = write_all(STDOUT_FILENO, {bytes.data(), static_cast<std::size_t>(n)}); !written)
      return fail(ErrorCode::kPeerGone, "nobody reads the output");
  }
}

}  // namespace

Result<void> follow(const std::string& path, long long from, int process) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail(errno_error("open " + path, errno));
  if (::lseek(file.get(), static_cast<off_t>(from), SEEK_SET) < 0)
    return fail(errno_error("seek in " + path, errno));
  if (process < 0) return copy(file.get());
  const UniqueFd changes(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!changes || ::inotify_add_watch(changes.get(), path.c_str(), IN_MODIFY) < 0)
    return fail(errno_error("watch " + path, errno));
  while (true) {
    MUSTER_OK(copy(file.get()));
    std::array<pollfd, 3> wait{pollfd{changes.get(), POLLIN, 0}, pollfd{process, POLLIN, 0},
                               pollfd{STDOUT_FILENO, 0, 0}};  // the reader's end is reported unasked
    if (::poll(wait.data(), wait.size(), -1) < 0) continue;
    if (wait[2].revents != 0) return fail(ErrorCode::kPeerGone, "nobody reads the output");
    if (wait[1].revents != 0) return copy(file.get());
    alignas(inotify_event) std::array<char, 4096> events;
    (void)retry_eintr([&] { return ::read(changes.get(), events.data(), events.size()); });
  }
}

Result<long long> beginning_of_last_lines(const std::string& path, std::size_t lines) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(errno_error("open " + path, errno));
  std::deque<long long> begins;  // of the last lines so far
  std::string line;
  for (long long at = 0; std::getline(file, line); at += std::ssize(line) + 1) {
    begins.push_back(at);
    if (begins.size() > lines) begins.pop_front();
  }
  return begins.empty() ? 0 : begins.front();
}

}  // namespace muster::launcher
