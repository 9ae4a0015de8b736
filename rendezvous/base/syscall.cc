// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/syscall.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"

namespace muster {
namespace {

ErrorCode code_for(int error_number) {
  const auto is_one_of = [error_number](auto... numbers) { return ((error_number == numbers) || ...); };
  if (is_one_of(ENOENT, ENOTDIR, ESRCH)) return ErrorCode::kNotFound;
  if (is_one_of(EINVAL, EISDIR, ENAMETOOLONG, EACCES, EPERM)) return ErrorCode::kInvalidArgument;
  if (is_one_of(ETIMEDOUT)) return ErrorCode::kTimeout;
  if (is_one_of(ECONNREFUSED, ECONNRESET, EPIPE, ENOTCONN)) return ErrorCode::kPeerGone;
  if (is_one_of(EMFILE, ENFILE, ENOMEM, ENOSPC, EADDRINUSE, EDQUOT)) return ErrorCode::kExhausted;
  return ErrorCode::kIo;
}

}  // namespace

std::string errno_text(int error_number) {
  const char* text = ::strerrordesc_np(error_number);
  const char* name = ::strerrorname_np(error_number);
  std::string out = text != nullptr ? text : "unknown error " + std::to_string(error_number);
  if (name != nullptr) out.append(" (").append(name).append(")");
  return out;
}

Error errno_error(std::string_view what, int error_number) {
  return Error{code_for(error_number), std::string(what) + ": " + errno_text(error_number) +
                                           (error_number == EMFILE ? "; see ulimit -n" : "")};
}

bool is_address_in_use(const Error& error) {
  return error.message.find("(EADDRINUSE)") != std::string::npos;
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  // Not blocking: opening a FIFO would wait for a writer. Reading one that nobody writes to ends at once.
  const UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd || ::fcntl(fd.get(), F_SETFL, 0) != 0) return fail(errno_error("open " + path, errno));
  std::string out;
  char block[65536];
  while (true) {
    const ssize_t n = retry_eintr([&] { return ::read(fd.get(), block, sizeof block); });
    if (n < 0) return fail(errno_error("read " + path, errno));
    if (n == 0) return out;
    if (out.size() + static_cast<std::size_t>(n) > max_bytes)
      return fail(ErrorCode::kExhausted,
                  "read " + path + ": larger than " + std::to_string(max_bytes) + " bytes");
    struct stat info {};
    if (out.empty() && n == sizeof block && ::fstat(fd.get(), &info) == 0)  // there may be much
      out.reserve(std::min(static_cast<std::size_t>(info.st_size), max_bytes));
    out.append(block, static_cast<std::size_t>(n));
  }
}

Result<void> check_private(std::string_view what, const std::string& path) {
  const std::string file = fmt::format("{} {}", what, path);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fail(errno_error(file, errno));
  if (!S_ISREG(info.st_mode) || (info.st_mode & 077) == 0) return {};
  return invalid("{} is open to others than its owner (mode {:o}); try: chmod 600 {}", file,
                 info.st_mode & 0777, path);
}

bool wait_until_ready(int fd, short events, Instant deadline) {
  constexpr Millis kLongest = std::chrono::hours(240);  // of one call, which counts in an int
  pollfd entry{fd, events, 0};
  Millis left = kLongest;
  int ready = 0;
  while (ready == 0 && left == kLongest)
    ready = retry_eintr([&] {
      left = std::min(time_left(deadline, SteadyClock::now()), kLongest);
      return ::poll(&entry, 1, static_cast<int>(left.count()));
    });
  return ready > 0;
}

Result<void> write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = retry_eintr([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (n < 0) return fail(errno_error("write", errno));
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> replace_file(const std::string& path, std::string_view text, unsigned mode) {
  const std::string draft = path + "." + std::to_string(::getpid()) + ".tmp";
  const UniqueFd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode));
  if (file && write_all(file.get(), text) && ::rename(draft.c_str(), path.c_str()) == 0) return {};
  Error error = errno_error(path, errno);
  if (file) ::unlink(draft.c_str());
  return fail(std::move(error));
}

UniqueFd open_pidfd(pid_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
}

Result<std::thread> start_quiet_thread(std::function<void()> work) {
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const Blocked blocked;
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kExhausted, "start a thread: " + error.code().message());
  }
}

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return limit.rlim_cur;
}

}  // namespace muster
