// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_writer.h"

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

#include "launcher/output/log_writer_process.h"
#include "launcher/output/shared_memory.h"
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
  MUSTER_OK(out.fork_writer(true));
  return out;
}

Result<void> LogWriter::fork_writer(bool first) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(errno_error("socketpair for the log writer", errno));
  control_.reset(ends[0]);
  const UniqueFd writers_end(ends[1]);
  // A signal to the whole process group, as from a terminal, must not find the child unprepared.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  // The first one as the guardian: not one of those whose ends the agent looks for. Later there may be other
  // threads here, and only fork(3) leaves the child a heap that none of them was changing.
  process_.reset();
  pid_ = first ? static_cast<pid_t>(::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, 0UL)) : ::fork();
  const int fork_errno = errno;
  if (pid_ != 0) ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) return fail(errno_error("fork the log writer", fork_errno));
  if (pid_ == 0) log_writer::run(writers_end.get(), *state_, rules_);
  process_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  return {};
}

Result<LogWriter::Replaced> LogWriter::replace() {
  // As a rule it is dead already.
  if (process_) ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  await_end();
  pid_ = -1;
  state_->writing_since.store(0);
  late_ = false;
  let_go();
  Replaced out;
  for (const Kept& kept : kept_) {
    if (!kept.state->in_hand.load()) continue;
    out.path = kept.path;
    out.lost = log_writer::lost_bytes(*kept.state);
  }
  MUSTER_OK(fork_writer(false));
  if (on_replaced_) on_replaced_(pid_);
  for (const Kept& kept : kept_) {
    Request request;
    request.kind = Request::Kind::kGoOn;
    request.path_bytes = static_cast<std::uint32_t>(kept.path.size());
    request.link_bytes = static_cast<std::uint32_t>(kept.link.size());
    // It opens the file itself, when it has put the names in order.
    const std::array<int, log_writer::kDescriptors> descriptors{kept.reader.get(), kept.reader.get(),
                                                                kept.memory.get()};
    MUSTER_OK(send(control_.get(), request, kept.path, kept.link, &descriptors));
  }
  return out;
}

void LogWriter::let_go() {
  const std::uint64_t refused = state_->refused.load();
  const bool some_refused = std::exchange(refused_, refused) != refused;
  std::erase_if(kept_, [&](const Kept& kept) {
    return kept.state->ended.load() || (some_refused && !kept.state->opened.load());
  });
}

LogWriter::LogWriter(LogWriter&& other) noexcept
    : rules_(other.rules_),
      pid_(std::exchange(other.pid_, -1)),
      process_(std::move(other.process_)),
      control_(std::move(other.control_)),
      state_(std::move(other.state_)),
      kept_(std::move(other.kept_)),
      on_replaced_(std::move(other.on_replaced_)),
      requests_(other.requests_),
      refused_(other.refused_),
      late_(other.late_) {}

LogWriter::~LogWriter() {
  if (pid_ <= 0) return;
  control_.reset();
  await_end();
}

/// For a moment. It may have been reaped with others, and its number be somebody else's.
void LogWriter::await_end() const {
  if (!process_) return;
  pollfd ended{process_.get(), POLLIN, 0};
  const auto patience = std::chrono::duration_cast<Millis>(kEndPatience).count();
  siginfo_t info{};
  if (retry_eintr([&] { return ::poll(&ended, 1, static_cast<int>(patience)); }) == 1)
    retry_eintr([&] {
      return ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process_.get()), &info,
                      WEXITED | __WALL);
    });
}

Result<LogWriter::Stream> LogWriter::open(UniqueFd file, const std::string& path, const std::string& link) {
  if (path.size() > log_writer::kMaxPathBytes || link.size() > log_writer::kMaxPathBytes)
    return fail(ErrorCode::kInvalidArgument, "the path is too long: " + path);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error("pipe for a worker's output", errno));
  UniqueFd reader(ends[0]);
  Stream out;
  out.worker.reset(ends[1]);
  ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(reader.get(), F_SETPIPE_SZ, kPipeBytes);
  UniqueFd memory(::memfd_create("muster-log", MFD_CLOEXEC));
  if (!memory || ::ftruncate(memory.get(), sizeof(LogStreamState)) != 0)
    return fail(errno_error("memory shared with the log writer", errno));
  MUSTER_TRY(out.state, share_memory<LogStreamState>(memory.get()));
  Request request;
  request.kind = Request::Kind::kOpen;
  request.path_bytes = static_cast<std::uint32_t>(path.size());
  request.link_bytes = static_cast<std::uint32_t>(link.size());
  const std::array<int, log_writer::kDescriptors> descriptors{reader.get(), file.get(), memory.get()};
  MUSTER_OK(send(control_.get(), request, path, link, &descriptors));
  let_go();
  kept_.push_back({std::move(reader), std::move(memory), path, link, out.state});
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
