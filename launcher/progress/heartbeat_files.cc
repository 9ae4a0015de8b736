// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/heartbeat_files.h"

#include <condition_variable>
#include <fcntl.h>
#include <mutex>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include <boost/asio/post.hpp>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

namespace asio = boost::asio;

struct HeartbeatFiles::Shared {
  std::vector<std::string> paths;
  Look look;
  UniqueFd answered;  // an event, for the loop

  std::mutex mutex;
  std::condition_variable asked;
  bool wanted = false;
  bool over = false;
  std::vector<std::optional<FileMark>> marks;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      asked.wait(lock, [this] { return wanted || over; });
      if (over) return;
      lock.unlock();
      std::vector<std::optional<FileMark>> found;
      for (const std::string& path : paths) found.push_back(look(path));
      lock.lock();
      marks = std::move(found);
      wanted = false;
      const std::uint64_t one = 1;
      (void)!retry_eintr([&] { return ::write(answered.get(), &one, sizeof one); });
    }
  }
};

FileMark mark_of(const struct stat& info) {
  const auto nanoseconds = static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000 +
                           static_cast<std::uint64_t>(info.st_mtim.tv_nsec);
  return nanoseconds * 31 + static_cast<std::uint64_t>(info.st_size) +
         static_cast<std::uint64_t>(info.st_ino);
}

std::optional<FileMark> HeartbeatFiles::look_at_file(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return mark_of(info);
}

HeartbeatFiles::HeartbeatFiles(asio::io_context& io, std::vector<std::string> paths, Look look)
    : io_(io),
      shared_(std::make_shared<Shared>()),
      answered_(io),
      deadline_(io),
      marks_(paths.size()),
      alive_(std::make_shared<bool>(true)) {
  shared_->paths = std::move(paths);
  shared_->look = std::move(look);
}

HeartbeatFiles::~HeartbeatFiles() {
  *alive_ = false;
  const std::lock_guard lock(shared_->mutex);
  shared_->over = true;
  shared_->asked.notify_one();
}

void HeartbeatFiles::read(std::function<void(bool)> done) {
  done_ = std::move(done);
  if (!begun_) {
    UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    UniqueFd ours(event ? ::fcntl(event.get(), F_DUPFD_CLOEXEC, 0) : -1);
    sigset_t all, before;
    sigfillset(&all);
    // Signals are the loop's.
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      if (ours) {
        shared_->answered = std::move(event);
        std::thread([shared = shared_] { shared->run(); }).detach();
        begun_ = true;
      }
    } catch (const std::system_error&) {
      // No thread: nothing is known of the files, as if they did not answer.
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (begun_) {
      ::fcntl(ours.get(), F_SETFD, FD_CLOEXEC);
      answered_.assign(ours.release());
    }
  }
  bool busy = !begun_;
  if (begun_) {
    const std::lock_guard lock(shared_->mutex);
    busy = shared_->wanted;  // of the last time
    // An answer that came too late is not taken for the next one.
    std::uint64_t count = 0;
    (void)!retry_eintr([&] { return ::read(answered_.native_handle(), &count, sizeof count); });
    shared_->wanted = true;
    shared_->asked.notify_one();
  }
  if (busy) {
    asio::post(io_, [this, alive = alive_] {
      if (*alive) finish(false);
    });
    return;
  }
  deadline_.expires_after(kPatience);
  deadline_.async_wait([this, alive = alive_](boost::system::error_code error) {
    if (!error && *alive && deadline_.expiry() <= SteadyClock::now()) finish(false);
  });
  wait();
}

void HeartbeatFiles::wait() {
  answered_.async_wait(
      asio::posix::descriptor_base::wait_read, [this, alive = alive_](boost::system::error_code error) {
        if (error || !*alive) return;
        std::uint64_t count = 0;
        const ssize_t n =
            retry_eintr([&] { return ::read(answered_.native_handle(), &count, sizeof count); });
        if (n < 0) return wait();
        {
          const std::lock_guard lock(shared_->mutex);
          marks_ = shared_->marks;
        }
        finish(true);
      });
}

void HeartbeatFiles::finish(bool in_time) {
  deadline_.cancel();
  boost::system::error_code ignored;
  if (answered_.is_open()) answered_.cancel(ignored);
  if (const auto call = std::exchange(done_, {})) call(in_time);
}

}  // namespace muster::launcher
