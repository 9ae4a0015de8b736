// SPDX-License-Identifier: Apache-2.0
#include "launcher/log_router.h"

#include <algorithm>
#include <fcntl.h>
#include <limits>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/stderr_channel.h"
#include "launcher/substitution.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr int kReadsPerTurn = 16;                    // then other descriptors get their turn
constexpr std::size_t kErrorFileBytes = 256 * 1024;  // of a file with stderr in it, searched for an error
constexpr int kReadsToDrain = 64;  // 256 KiB in pieces of 4 KiB: more than a pipe or a pseudo-terminal holds

std::string end_of_file(const std::string& path, std::size_t max_bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  std::string out(std::min(static_cast<std::size_t>(size), max_bytes), '\0');
  const ssize_t n = ::pread(file.get(), out.data(), out.size(), size - static_cast<off_t>(out.size()));
  out.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return out;
}

}  // namespace

struct LogRouter::Follower {
  UniqueFd file;
  LineSplitter splitter;
  std::string prefix;
  OutputSink* target = nullptr;  // null: the filter hides this rank
  bool waiting = false;          // for the target to clear
};

struct LogRouter::Worker {
  explicit Worker(boost::asio::io_context& io) : channel(io) {}

  UniqueFd child_stdout, child_stderr;  // until started()
  boost::asio::posix::stream_descriptor channel;
  bool channel_open = false;
  bool shown = true;
  TailBuffer tail;
  ErrorWatch errors;
  std::string stderr_path;  // when it goes to a file
};

LogRouter::LogRouter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
                     const LogDirectory& directory, OutputSink& out, OutputSink& err, int terminal)
    : io_(io),
      job_(job),
      assignment_(assignment),
      directory_(directory),
      out_(out),
      err_(err),
      terminal_(terminal),
      changes_(io),
      buffer_(kReadBytes, '\0'),
      alive_(std::make_shared<bool>(true)) {
  workers_.resize(static_cast<std::size_t>(job.local_world_size));
}

LogRouter::~LogRouter() {
  *alive_ = false;
}

bool LogRouter::shown(int local_rank) const {
  const auto& filter = job_.logs.local_ranks_filter;
  return filter.empty() || std::find(filter.begin(), filter.end(), local_rank) != filter.end();
}

std::string LogRouter::prefix(int local_rank) const {
  return substitute(job_.logs.prefix_template, [&](std::string_view name) -> std::optional<std::string> {
    if (name == "role_name") return job_.role;
    if (name == "local_rank") return std::to_string(local_rank);
    if (name == "rank") return std::to_string(assignment_.base_rank + local_rank);
    if (name == "hostname") return job_.host.substr(0, job_.host.find('.'));
    return std::nullopt;
  });
}

Result<UniqueFd> LogRouter::open_file(int local_rank, Std stream, bool follow, int& watch) {
  const std::string path = directory_.file(local_rank, stream == Std::kOut ? "stdout.log" : "stderr.log");
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  if (!follow) return file;
  if (!changes_.is_open()) {
    UniqueFd notifier(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (!notifier) return fail(errno_error("inotify for -t; see fs.inotify.max_user_instances", errno));
    changes_.assign(notifier.release());
    follow_changes();
  }
  auto follower = std::make_unique<Follower>();
  follower->file.reset(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!follower->file) return fail(errno_error("open " + path, errno));
  follower->prefix = prefix(local_rank);
  if (shown(local_rank)) follower->target = stream == Std::kOut ? &out_ : &err_;
  watch = ::inotify_add_watch(changes_.native_handle(), path.c_str(), IN_MODIFY);
  if (watch < 0) return fail(errno_error("watch " + path + "; see fs.inotify.max_user_watches", errno));
  followers_[watch] = std::move(follower);
  return file;
}

Result<LogRouter::Streams> LogRouter::open(int local_rank) {
  auto& slot = workers_[static_cast<std::size_t>(local_rank)];
  slot = std::make_unique<Worker>(io_);
  Worker& worker = *slot;
  worker.shown = shown(local_rank);
  const Std tee = directory_.enabled() ? job_.logs.tee.of(local_rank) : Std::kNone;
  const Std files = directory_.enabled() ? job_.logs.redirects.of(local_rank) | tee : Std::kNone;

  int watch = -1;
  if (has(files, Std::kOut)) {
    MUSTER_TRY(worker.child_stdout, open_file(local_rank, Std::kOut, has(tee, Std::kOut), watch));
  } else if (!worker.shown) {
    worker.child_stdout.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  }
  if (has(files, Std::kErr)) {
    MUSTER_TRY(worker.child_stderr, open_file(local_rank, Std::kErr, has(tee, Std::kErr), watch));
    worker.stderr_path = directory_.file(local_rank, "stderr.log");
  } else {
    MUSTER_TRY(StderrChannel channel, open_stderr_channel(terminal_));
    worker.child_stderr = std::move(channel.writer);
    worker.channel.assign(channel.reader.release());
    worker.channel_open = true;
    read_channel(worker);
  }
  return Streams{worker.child_stdout.get(), worker.child_stderr.get()};
}

void LogRouter::started(int local_rank) {
  Worker& worker = *workers_[static_cast<std::size_t>(local_rank)];
  worker.child_stdout.reset();
  worker.child_stderr.reset();
}

void LogRouter::read_channel(Worker& worker) {
  worker.channel.async_wait(boost::asio::posix::descriptor_base::wait_read,
                            [this, &worker, alive = alive_](boost::system::error_code error) {
                              if (error || !*alive) return;
                              for (int i = 0; i < kReadsPerTurn && worker.channel_open; ++i) {
                                if (worker.shown && err_.congested()) {
                                  err_.when_clear([this, &worker, alive = alive_] {
                                    if (*alive && worker.channel_open) read_channel(worker);
                                  });
                                  return;
                                }
                                if (read_channel_once(worker) == 0) break;
                              }
                              if (worker.channel_open) read_channel(worker);
                            });
}

/// 0 when there is nothing to read now, or no more ever.
std::size_t LogRouter::read_channel_once(Worker& worker) {
  const ssize_t n =
      retry_eintr([&] { return ::read(worker.channel.native_handle(), buffer_.data(), buffer_.size()); });
  if (n > 0) {
    const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(n));
    worker.tail.append(bytes);
    // Who fills the whole buffer is not failing but talking: what it says costs no second look.
    if (bytes.size() < kReadBytes) worker.errors.feed(bytes);
    if (worker.shown) err_.write(bytes);
    return bytes.size();
  }
  // A pseudo-terminal whose other end is closed everywhere reports EIO instead of end of file.
  if (n == 0 || errno != EAGAIN) {
    worker.channel_open = false;
    boost::system::error_code ignored;
    worker.channel.close(ignored);
  }
  return 0;
}

void LogRouter::follow_changes() {
  changes_.async_wait(boost::asio::posix::descriptor_base::wait_read, [this, alive = alive_](
                                                                          boost::system::error_code error) {
    if (error || !*alive) return;
    alignas(inotify_event) char events[4096];
    const ssize_t n = retry_eintr([&] { return ::read(changes_.native_handle(), events, sizeof events); });
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      if ((event->mask & IN_Q_OVERFLOW) != 0) {
        for (auto& [watch, follower] : followers_) read_follower(*follower, false);
      } else if (const auto found = followers_.find(event->wd); found != followers_.end()) {
        read_follower(*found->second, false);
      }
    }
    follow_changes();
  });
}

void LogRouter::read_follower(Follower& follower, bool to_the_end) {
  if (follower.target == nullptr) return;
  std::string lines;
  const auto emit = [&](std::string_view line) {
    lines.append(follower.prefix).append(line).push_back('\n');
  };
  struct stat info {};
  off_t left = std::numeric_limits<off_t>::max();
  if (to_the_end && ::fstat(follower.file.get(), &info) == 0)
    left = info.st_size - ::lseek(follower.file.get(), 0, SEEK_CUR);
  while (left > 0) {
    if (!to_the_end && follower.target->congested()) {
      if (std::exchange(follower.waiting, true)) return;
      follower.target->when_clear([this, &follower, alive = alive_] {
        if (!*alive) return;
        follower.waiting = false;
        read_follower(follower, false);
      });
      return;
    }
    const ssize_t n =
        retry_eintr([&] { return ::read(follower.file.get(), buffer_.data(), buffer_.size()); });
    if (n <= 0) break;
    left -= n;
    lines.clear();
    follower.splitter.feed(std::string_view(buffer_.data(), static_cast<std::size_t>(n)), emit);
    follower.target->write(lines);
  }
  if (!to_the_end) return;
  lines.clear();
  follower.splitter.finish(emit);
  follower.target->write(lines);
}

/// Bounded: a process that left its worker's group may still be writing, and for ever.
void LogRouter::drain() {
  for (auto& worker : workers_)
    for (int i = 0; i < kReadsToDrain && worker && worker->channel_open && read_channel_once(*worker) > 0;
         ++i) {
    }
  for (auto& [watch, follower] : followers_) read_follower(*follower, true);
}

std::optional<Cause> LogRouter::error_so_far(int local_rank) {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return std::nullopt;
  if (worker->stderr_path.empty()) {
    // No more than the channel holds: what comes later was not there when it was asked for.
    for (std::size_t bytes = 0, n = 1; n > 0 && bytes < kReadBytes && worker->channel_open; bytes += n)
      n = read_channel_once(*worker);
    ErrorWatch watch = worker->errors;  // a copy: the last line may go on
    watch.finish();
    return watch.found();
  }
  ErrorWatch watch;
  watch.feed(end_of_file(worker->stderr_path, kErrorFileBytes));
  watch.finish();
  return watch.found();
}

std::vector<std::string> LogRouter::stderr_tail(int local_rank, std::size_t lines) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return {};
  if (worker->stderr_path.empty()) return worker->tail.last_lines(lines);
  TailBuffer tail;
  tail.append(end_of_file(worker->stderr_path, TailBuffer::kDefaultCap));
  return tail.last_lines(lines);
}

void LogRouter::window_changed() {
  for (const auto& worker : workers_)
    if (worker && worker->channel_open) copy_window_size(terminal_, worker->channel.native_handle());
}

}  // namespace muster::launcher
