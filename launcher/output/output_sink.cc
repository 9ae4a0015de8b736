// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/output_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {

OutputSink::OutputSink(boost::asio::io_context& io, int fd) : fd_(fd), waiter_(io) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    way_ = Way::kGone;
    return;
  }
  int watched = -1;
  if (S_ISSOCK(info.st_mode)) {
    way_ = Way::kSocket;
    watched = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  } else if (S_ISFIFO(info.st_mode) || ::isatty(fd) == 1) {
    // O_NONBLOCK on the inherited descriptor would hit everybody who shares it; opened anew it is ours alone.
    watched =
        ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (watched >= 0) {
      way_ = Way::kNonBlocking;
      fd_ = watched;
    }
  }
  if (watched < 0) return;  // a file, a device, or no /proc: plain writes
  boost::system::error_code error;
  waiter_.assign(watched, error);
  if (error) {
    ::close(watched);
    way_ = Way::kBlocking;
    fd_ = fd;
  }
}

std::size_t OutputSink::write_some(std::string_view bytes) {
  if (way_ == Way::kGone) return bytes.size();
  const ssize_t n = retry_eintr([&] {
    return way_ == Way::kSocket ? ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                                : ::write(fd_, bytes.data(), bytes.size());
  });
  if (n >= 0) return static_cast<std::size_t>(n);
  const int error = errno;
  if (error == EAGAIN) {
    if (way_ != Way::kBlocking) return 0;
    pollfd wait{fd_, POLLOUT, 0};  // somebody made the shared descriptor non-blocking
    ::poll(&wait, 1, -1);
    return 0;
  }
  if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO) {
    lost_bytes_ += bytes.size();
    if (const auto tell = std::exchange(failed_, {})) tell(error);
    return bytes.size();
  }
  way_ = Way::kGone;
  return bytes.size();
}

void OutputSink::write(std::string_view bytes) {
  while (queue_.empty() && !bytes.empty()) {
    const std::size_t n = write_some(bytes);
    if (n == 0 && way_ != Way::kBlocking) break;
    bytes.remove_prefix(n);
  }
  if (bytes.empty()) return;
  queued_bytes_ += bytes.size();
  queue_.emplace_back(bytes);
  arm();
}

void OutputSink::pump() {
  while (!queue_.empty()) {
    std::string& front = queue_.front();
    const std::size_t n = write_some(front);
    if (n == 0) return;
    queued_bytes_ -= n;
    front.erase(0, n);
    if (front.empty()) queue_.pop_front();
  }
}

void OutputSink::arm() {
  if (armed_ || queue_.empty()) return;
  armed_ = true;
  waiter_.async_wait(boost::asio::posix::descriptor_base::wait_write,
                     [this](boost::system::error_code error) {
                       if (error == boost::asio::error::operation_aborted) return;
                       armed_ = false;
                       if (error) way_ = Way::kGone;
                       pump();
                       arm();
                       if (congested()) return;
                       std::vector<std::function<void()>> resumed;
                       resumed.swap(waiting_);
                       for (const auto& resume : resumed) resume();
                     });
}

std::size_t OutputSink::flush(Instant deadline) {
  while (!queue_.empty()) {
    pump();
    if (queue_.empty()) break;
    const auto left = time_left(deadline, SteadyClock::now());
    pollfd wait{fd_, POLLOUT, 0};
    if (left.count() == 0 || (::poll(&wait, 1, static_cast<int>(left.count())) < 0 && errno != EINTR)) break;
  }
  return queued_bytes_;
}

}  // namespace muster::launcher
