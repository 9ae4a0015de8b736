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

#include "launcher/output_channel.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr int kReadsPerTurn = 16;                  // then other descriptors get their turn
constexpr std::chrono::seconds kDrainPatience{3};  // for whoever reads the rest of what was teed
constexpr int kReadsToDrain = 64;  // 256 KiB in pieces of 4 KiB: more than a pipe or a pseudo-terminal holds

}  // namespace

struct LogRouter::Follower {
  int local_rank = 0;
  Std stream = Std::kOut;
  UniqueFd file;
  LineSplitter splitter;
  bool shown = false;
  FilteredLog* filtered = nullptr;
  bool waiting = false;  // for the screen to clear
};

struct LogRouter::Channel {
  explicit Channel(boost::asio::io_context& io) : reader(io) {}

  boost::asio::posix::stream_descriptor reader;
  bool open = false;
  int local_rank = 0;
  Std stream = Std::kErr;
  Screen::Form form = Screen::Form::kBytes;
  LineSplitter splitter;  // with kLines
  TailBuffer tail;        // of stderr
  ErrorWatch errors;      // likewise
};

struct LogRouter::Worker {
  explicit Worker(boost::asio::io_context& io) : out(io), err(io) {}

  UniqueFd child_stdout, child_stderr;  // until started()
  Channel out, err;
  std::optional<StderrFile> stderr_file;  // when it goes to one
};

LogRouter::LogRouter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
                     LogDirectory& directory, OutputSink& out, OutputSink& err, Terminals terminals)
    : io_(io),
      job_(job),
      directory_(directory),
      terminals_(terminals),
      screen_(io, job, assignment, out, err),
      changes_(io),
      buffer_(kReadBytes, '\0'),
      alive_(std::make_shared<bool>(true)) {
  workers_.resize(static_cast<std::size_t>(job.local_world_size));
}

LogRouter::~LogRouter() {
  *alive_ = false;
}

/// They are there even if no line ever is.
Result<void> LogRouter::open_filtered() {
  if (!directory_.enabled()) return {};
  const auto create = [&](const std::vector<std::string>& texts, const char* name,
                          std::optional<FilteredLog>& out) -> Result<void> {
    if (texts.empty() || out) return {};
    MUSTER_TRY(FilteredLog log, FilteredLog::create(directory_.attempt_file(name), texts));
    out.emplace(std::move(log));
    return {};
  };
  MUSTER_OK(create(job_.logs.stdout_filters, "filtered_stdout.log", filtered_out_));
  return create(job_.logs.stderr_filters, "filtered_stderr.log", filtered_err_);
}

void LogRouter::flush(FilteredLog* filtered) {
  if (filtered == nullptr) return;
  if (const auto flushed = filtered->flush(); !flushed)
    screen_.bytes(Std::kErr, fmt::format("muster: {}\n", flushed.error().message));
}

Result<UniqueFd> LogRouter::open_file(int local_rank, Std stream, bool follow) {
  const std::string path = directory_.file(local_rank, stream == Std::kOut ? "stdout.log" : "stderr.log");
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  MUSTER_OK(directory_.name_by_rank(local_rank, stream == Std::kOut ? "out" : "err"));
  if (!follow) return file;
  if (!changes_.is_open()) {
    UniqueFd notifier(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (!notifier) return fail(errno_error("inotify for -t; see fs.inotify.max_user_instances", errno));
    changes_.assign(notifier.release());
    follow_changes();
  }
  auto follower = std::make_unique<Follower>();
  follower->local_rank = local_rank;
  follower->stream = stream;
  follower->shown = screen_.shown(local_rank);
  auto& filtered = stream == Std::kOut ? filtered_out_ : filtered_err_;
  if (filtered) follower->filtered = &*filtered;
  follower->file.reset(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!follower->file) return fail(errno_error("open " + path, errno));
  const int watch = ::inotify_add_watch(changes_.native_handle(), path.c_str(), IN_MODIFY);
  if (watch < 0) return fail(errno_error("watch " + path + "; see fs.inotify.max_user_watches", errno));
  followers_[watch] = std::move(follower);
  return file;
}

Result<UniqueFd> LogRouter::open_channel(Channel& channel, int local_rank, Std stream, Screen::Form form) {
  MUSTER_TRY(OutputChannel ends, open_output_channel(stream == Std::kOut ? terminals_.out : terminals_.err));
  channel.reader.assign(ends.reader.release());
  channel.open = true;
  channel.local_rank = local_rank;
  channel.stream = stream;
  channel.form = form;
  read_channel(channel);
  return std::move(ends.writer);
}

Result<LogRouter::Streams> LogRouter::open(int local_rank) {
  MUSTER_OK(open_filtered());
  auto& slot = workers_[static_cast<std::size_t>(local_rank)];
  slot = std::make_unique<Worker>(io_);
  Worker& worker = *slot;
  const Screen::Form form = screen_.form(local_rank);
  const Std tee = directory_.enabled() ? job_.logs.tee.of(local_rank) : Std::kNone;
  const Std files = directory_.enabled() ? job_.logs.redirects.of(local_rank) | tee : Std::kNone;

  if (has(files, Std::kOut)) {
    MUSTER_TRY(worker.child_stdout, open_file(local_rank, Std::kOut, has(tee, Std::kOut)));
  } else if (form == Screen::Form::kHidden) {
    worker.child_stdout.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  } else if (form == Screen::Form::kLines) {
    MUSTER_TRY(worker.child_stdout, open_channel(worker.out, local_rank, Std::kOut, form));
  }
  if (has(files, Std::kErr)) {
    MUSTER_TRY(worker.child_stderr, open_file(local_rank, Std::kErr, has(tee, Std::kErr)));
    worker.stderr_file.emplace(directory_.file(local_rank, "stderr.log"));
  } else {
    MUSTER_TRY(worker.child_stderr, open_channel(worker.err, local_rank, Std::kErr, form));
  }
  return Streams{worker.child_stdout.get(), worker.child_stderr.get()};
}

void LogRouter::started(int local_rank) {
  Worker& worker = *workers_[static_cast<std::size_t>(local_rank)];
  worker.child_stdout.reset();
  worker.child_stderr.reset();
}

void LogRouter::read_channel(Channel& channel) {
  channel.reader.async_wait(boost::asio::posix::descriptor_base::wait_read,
                            [this, &channel, alive = alive_](boost::system::error_code error) {
                              if (error || !*alive) return;
                              const bool shown = channel.form != Screen::Form::kHidden;
                              for (int i = 0; i < kReadsPerTurn && channel.open; ++i) {
                                if (shown && screen_.congested(channel.stream)) {
                                  screen_.when_clear(channel.stream, [this, &channel, alive = alive_] {
                                    if (*alive && channel.open) read_channel(channel);
                                  });
                                  return;
                                }
                                if (read_channel_once(channel) == 0) break;
                              }
                              if (channel.open) read_channel(channel);
                            });
}

/// 0 when there is nothing to read now, or no more ever.
std::size_t LogRouter::read_channel_once(Channel& channel) {
  const auto emit = [&](std::string_view line) { screen_.line(channel.local_rank, channel.stream, line); };
  const ssize_t n =
      retry_eintr([&] { return ::read(channel.reader.native_handle(), buffer_.data(), buffer_.size()); });
  if (n > 0) {
    const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(n));
    if (channel.stream == Std::kErr) {
      channel.tail.append(bytes);
      channel.errors.feed(bytes);  // 2 to 5 ns a byte where there is no error in it
    }
    if (channel.form == Screen::Form::kBytes) screen_.bytes(channel.stream, bytes);
    if (channel.form == Screen::Form::kLines) {
      channel.splitter.feed(bytes, emit);
      screen_.flush();
    }
    return bytes.size();
  }
  // A pseudo-terminal whose other end is closed everywhere reports EIO instead of end of file.
  if (n == 0 || errno != EAGAIN) {
    channel.open = false;
    boost::system::error_code ignored;
    channel.reader.close(ignored);
    channel.splitter.finish(emit);
    screen_.flush();
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
  if (!follower.shown) return;
  const auto emit = [&](std::string_view line) {
    screen_.line(follower.local_rank, follower.stream, line);
    if (follower.filtered != nullptr) follower.filtered->offer(screen_.prefix(follower.local_rank), line);
  };
  struct stat info {};
  off_t left = std::numeric_limits<off_t>::max();
  if (to_the_end && ::fstat(follower.file.get(), &info) == 0)
    left = info.st_size - ::lseek(follower.file.get(), 0, SEEK_CUR);
  while (left > 0) {
    // Nobody was slowed while this grew: it may be more than memory holds.
    if (to_the_end && screen_.congested(follower.stream) &&
        !screen_.make_room(follower.stream, drained_by_)) {
      screen_.bytes(Std::kErr, fmt::format("muster: the last {} bytes of local_rank {} are not shown, since "
                                           "nobody reads them; its file has them\n",
                                           left, follower.local_rank));
      break;
    }
    if (!to_the_end && screen_.congested(follower.stream)) {
      if (std::exchange(follower.waiting, true)) return;
      screen_.when_clear(follower.stream, [this, &follower, alive = alive_] {
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
    follower.splitter.feed(std::string_view(buffer_.data(), static_cast<std::size_t>(n)), emit);
    screen_.flush();
    flush(follower.filtered);
  }
  if (!to_the_end) return;
  follower.splitter.finish(emit);
  screen_.flush();
  flush(follower.filtered);
}

/// Bounded: a process that left its worker's group may still be writing, and for ever.
void LogRouter::drain() {
  drained_by_ = SteadyClock::now() + kDrainPatience;
  for (auto& worker : workers_) {
    if (!worker) continue;
    for (Channel* channel : {&worker->out, &worker->err}) {
      for (int i = 0; i < kReadsToDrain && channel->open && read_channel_once(*channel) > 0; ++i) {
      }
      channel->splitter.finish(
          [&](std::string_view line) { screen_.line(channel->local_rank, channel->stream, line); });
    }
  }
  for (auto& [watch, follower] : followers_) read_follower(*follower, true);
  screen_.finish();
}

std::optional<Cause> LogRouter::error_so_far(int local_rank) {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return std::nullopt;
  if (worker->stderr_file) return worker->stderr_file->error_so_far(buffer_);
  // No more than the channel holds: what comes later was not there when it was asked for.
  for (std::size_t bytes = 0, n = 1; n > 0 && bytes < kReadBytes && worker->err.open; bytes += n)
    n = read_channel_once(worker->err);
  ErrorWatch watch = worker->err.errors;  // a copy: the last line may go on
  watch.finish();
  return watch.found();
}

std::vector<std::string> LogRouter::stderr_tail(int local_rank, std::size_t lines) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return {};
  return worker->stderr_file ? worker->stderr_file->last_lines(lines) : worker->err.tail.last_lines(lines);
}

void LogRouter::window_changed() {
  for (const auto& worker : workers_) {
    if (!worker) continue;
    if (worker->out.open) copy_window_size(terminals_.out, worker->out.reader.native_handle());
    if (worker->err.open) copy_window_size(terminals_.err, worker->err.reader.native_handle());
  }
}

}  // namespace muster::launcher
