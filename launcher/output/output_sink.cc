// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/output_sink.h"

#include <atomic>
#include <fcntl.h>
#include <future>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {

/// One piece that the thread writes. The loop reads it meanwhile.
struct OutputSink::Written {
  explicit Written(std::string text) : bytes(std::move(text)) {}

  const std::string bytes;
  std::atomic<std::size_t> count{0};
  std::atomic<int> error{0};
  std::promise<void> promise;
  std::future<void> done = promise.get_future();

  /// On the thread.
  void write(int fd) {
    while (count < bytes.size() && error == 0) {
      const ssize_t n = retry_eintr([&] { return ::write(fd, bytes.data() + count, bytes.size() - count); });
      if (n >= 0) {
        count += static_cast<std::size_t>(n);
      } else if (errno == EAGAIN) {
        // Somebody made the shared descriptor non-blocking.
        (void)wait_until_ready(fd, POLLOUT, Instant::max());
      } else {
        error = errno;
      }
    }
    promise.set_value();
  }
};

OutputSink::OutputSink(boost::asio::io_context& io, int fd) : fd_(fd), waiter_(io) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    mode_ = Mode::kGone;
    return;
  }
  int watched = -1;
  if (S_ISSOCK(info.st_mode)) {
    mode_ = Mode::kSocket;
    watched = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  } else if (S_ISFIFO(info.st_mode) || ::isatty(fd) == 1) {
    // O_NONBLOCK on the inherited descriptor would hit everybody who shares it; opened anew it is ours alone.
    watched =
        ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (watched >= 0) {
      mode_ = Mode::kNonBlocking;
      fd_ = watched;
    } else {
      mode_ = Mode::kThread;
      thread_.emplace(io);
    }
  }
  if (watched < 0) return;  // a file or a device: plain writes
  boost::system::error_code error;
  waiter_.assign(watched, error);
  if (error) {
    ::close(watched);
    mode_ = Mode::kBlocking;
    fd_ = fd;
  }
}

OutputSink::~OutputSink() = default;

void OutputSink::failed(int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO) {
    if (const auto tell = std::exchange(failed_, {})) tell(error);
  } else {
    mode_ = Mode::kGone;
  }
}

std::size_t OutputSink::write_some(std::string_view bytes) {
  if (mode_ == Mode::kGone) return bytes.size();
  const ssize_t n = retry_eintr([&] {
    return mode_ == Mode::kSocket ? ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : ::write(fd_, bytes.data(), bytes.size());
  });
  if (n >= 0) return static_cast<std::size_t>(n);
  const int error = errno;
  if (error == EAGAIN) {
    if (mode_ != Mode::kBlocking) return 0;
    // Somebody made the shared descriptor non-blocking.
    (void)wait_until_ready(fd_, POLLOUT, Instant::max());
    return 0;
  }
  failed(error);
  return bytes.size();
}

void OutputSink::write(std::string_view bytes) {
  if (!bytes.empty()) line_open_ = bytes.back() != '\n';
  while (mode_ != Mode::kThread && queue_.empty() && !bytes.empty()) {
    const std::size_t n = write_some(bytes);
    if (n == 0 && mode_ != Mode::kBlocking) break;
    bytes.remove_prefix(n);
  }
  if (bytes.empty()) return;
  queued_bytes_ += bytes.size();
  queue_.emplace_back(bytes);
  arm();
}

/// With kThread: all that is queued, as one piece.
void OutputSink::hand_over() {
  if (written_ || queue_.empty()) return;
  std::string bytes;
  for (const std::string& piece : queue_) bytes += piece;
  queue_.clear();
  written_ = std::make_shared<Written>(std::move(bytes));
  thread_->run([written = written_, fd = fd_] { written->write(fd); },
               [this, written = written_] {
                 if (written != written_) return;  // flush() has seen its end
                 take_written();
                 hand_over();
                 if (!backpressure()) resume_readers();
               });
}

void OutputSink::take_written() {
  const auto written = std::exchange(written_, nullptr);
  queued_bytes_ -= written->bytes.size();
  if (written->error == 0) return;
  failed(written->error);
  if (mode_ != Mode::kGone) return;
  queue_.clear();
  queued_bytes_ = 0;
}

void OutputSink::resume_readers() {
  std::vector<std::function<void()>> resumed;
  resumed.swap(waiting_);
  for (const auto& resume : resumed) resume();
}

void OutputSink::pump() {
  while (!queue_.empty()) {
    const std::string_view front = queue_.front();
    const std::size_t n = write_some(front.substr(taken_));
    if (n == 0) return;
    queued_bytes_ -= n;
    taken_ += n;
    if (taken_ < front.size()) continue;
    queue_.pop_front();
    taken_ = 0;
  }
}

void OutputSink::arm() {
  if (mode_ == Mode::kThread) return hand_over();
  if (armed_ || queue_.empty()) return;
  armed_ = true;
  waiter_.async_wait(boost::asio::posix::descriptor_base::wait_write,
                     [this](boost::system::error_code error) {
                       if (error == boost::asio::error::operation_aborted) return;
                       armed_ = false;
                       if (error) mode_ = Mode::kGone;
                       pump();
                       arm();
                       if (!backpressure()) resume_readers();
                     });
}

std::size_t OutputSink::flush(Millis patience) {
  while (mode_ == Mode::kThread && queued_bytes_ > 0) {
    hand_over();
    const std::size_t before = written_->count;
    const bool is_done = written_->done.wait_for(patience) == std::future_status::ready;
    if (!is_done && written_->count == before) return queued_bytes_ - before;
    if (is_done) take_written();
  }
  pump();
  while (!queue_.empty() && wait_until_ready(fd_, POLLOUT, after(patience))) pump();
  return queued_bytes_;
}

}  // namespace muster::launcher
