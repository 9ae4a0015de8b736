// SPDX-License-Identifier: Apache-2.0
#include "launcher/log_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <utility>

#include "launcher/log_writer_process.h"
#include "launcher/shared_memory.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

using log_writer::Request;

constexpr std::chrono::seconds kEndPatience{3};
// More in a pipe means fewer turns between its ends. The kernel may give less, or refuse.
constexpr int kPipeBytes = 256 * 1024;

Result<void> send(int control, const Request& request, const std::string& path, const std::string& link,
                  const std::array<int, log_writer::kDescriptors>* descriptors) {
  std::array<iovec, 3> parts{{{const_cast<Request*>(&request), sizeof request},
                              {const_cast<char*>(path.data()), path.size()},
                              {const_cast<char*>(link.data()), link.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof *descriptors)> ancillary{};
  if (descriptors != nullptr) {
    message.msg_control = ancillary.data();
    message.msg_controllen = ancillary.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof *descriptors);
    std::memcpy(CMSG_DATA(header), descriptors->data(), sizeof *descriptors);
  }
  if (retry_eintr([&] { return ::sendmsg(control, &message, MSG_NOSIGNAL); }) < 0)
    return fail(errno_error("talk to the log writer; was it killed?", errno));
  return {};
}

}  // namespace

Result<LogWriter> LogWriter::start(Rotation rules) {
  LogWriter out(rules);
  MUSTER_TRY(out.state_, share_memory<LogWriterState>(-1));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(errno_error("socketpair for the log writer", errno));
  out.control_.reset(ends[0]);
  const UniqueFd writers_end(ends[1]);
  // A signal to the whole process group, as from a terminal, must not find the child unprepared.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  // As the guardian: not one of those whose ends the agent looks for.
  out.pid_ = static_cast<pid_t>(::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, 0UL));
  const int clone_errno = errno;
  if (out.pid_ != 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (out.pid_ < 0) return fail(errno_error("fork the log writer", clone_errno));
  if (out.pid_ == 0) log_writer::run(writers_end.get(), *out.state_, rules);
  return out;
}

LogWriter::LogWriter(LogWriter&& other) noexcept
    : rules_(other.rules_),
      pid_(std::exchange(other.pid_, -1)),
      control_(std::move(other.control_)),
      state_(std::move(other.state_)),
      requests_(other.requests_),
      late_(other.late_) {}

LogWriter::~LogWriter() {
  if (pid_ <= 0) return;
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  control_.reset();
  if (!process) return;
  pollfd ended{process.get(), POLLIN, 0};
  const auto patience = std::chrono::duration_cast<Millis>(kEndPatience).count();
  if (retry_eintr([&] { return ::poll(&ended, 1, static_cast<int>(patience)); }) == 1)
    retry_eintr([&] { return ::waitpid(pid_, nullptr, __WALL); });
}

Result<LogWriter::Stream> LogWriter::open(UniqueFd file, const std::string& path, const std::string& link) {
  if (path.size() > log_writer::kMaxPathBytes || link.size() > log_writer::kMaxPathBytes)
    return fail(ErrorCode::kInvalidArgument, "the path is too long: " + path);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return fail(errno_error("pipe for a worker's output; see ulimit -n", errno));
  const UniqueFd reader(ends[0]);
  Stream out;
  out.worker.reset(ends[1]);
  ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(reader.get(), F_SETPIPE_SZ, kPipeBytes);
  const UniqueFd memory(::memfd_create("muster-log", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), sizeof(LogStreamState)) != 0)
    return fail(errno_error("memory shared with the log writer", errno));
  MUSTER_TRY(out.state, share_memory<LogStreamState>(memory.get()));
  Request request;
  request.kind = Request::Kind::kOpen;
  request.path_bytes = static_cast<std::uint32_t>(path.size());
  request.link_bytes = static_cast<std::uint32_t>(link.size());
  const std::array<int, log_writer::kDescriptors> descriptors{reader.get(), file.get(), memory.get()};
  MUSTER_OK(send(control_.get(), request, path, link, &descriptors));
  return out;
}

bool LogWriter::settle(Instant deadline) {
  if (late_ && state_->settled.load() < requests_) return false;
  Request request;
  request.number = ++requests_;
  if (!send(control_.get(), request, {}, {}, nullptr)) return false;
  while (state_->settled.load() < request.number) {
    pollfd bell{control_.get(), POLLIN, 0};
    const auto left = time_left(deadline, SteadyClock::now());
    late_ = left.count() == 0;
    if (late_) return false;
    if (::poll(&bell, 1, static_cast<int>(left.count())) == 1 && !clear_bell()) return false;
  }
  late_ = false;
  return true;
}

bool LogWriter::clear_bell() {
  char ring = 0;
  while (true) {
    const ssize_t n = retry_eintr([&] { return ::recv(control_.get(), &ring, 1, MSG_DONTWAIT); });
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
  }
}

std::optional<Instant> LogWriter::writing_since() const {
  const std::int64_t since = state_->writing_since.load();
  if (since == 0) return std::nullopt;
  return Instant(std::chrono::nanoseconds(since));
}

}  // namespace muster::launcher
