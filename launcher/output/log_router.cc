// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_router.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <future>
#include <limits>
#include <poll.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <termios.h>
#include <unistd.h>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

Result<OutputChannel> open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error("pipe for a worker's output", errno));
  OutputChannel out{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // The reader only: the worker must find its end blocking, as any program expects its stderr.
  ::fcntl(out.reader.get(), F_SETFL, O_NONBLOCK);
  return out;
}

Result<OutputChannel> open_terminal(int terminal) {
  OutputChannel out;
  out.reader.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!out.reader || ::unlockpt(out.reader.get()) != 0)
    return fail(errno_error("open a pseudo-terminal", errno));
  out.writer.reset(::ioctl(out.reader.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!out.writer) return fail(errno_error("open a pseudo-terminal's other end", errno));
  termios mode{};
  if (::tcgetattr(out.writer.get(), &mode) == 0) {
    mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // the real terminal processes the bytes, once
    mode.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ::tcsetattr(out.writer.get(), TCSANOW, &mode);
  }
  copy_window_size(terminal, out.reader.get());
  return out;
}

/// -1: it is none.
int terminal(int fd) {
  return ::isatty(fd) == 1 ? fd : -1;
}

bool is_disk_full(const std::string& path) {
  struct statvfs disk {};
  if (::statvfs(path.c_str(), &disk) != 0 || disk.f_blocks == 0) return false;
  return (::geteuid() == 0 ? disk.f_bfree : disk.f_bavail) == 0;
}

constexpr std::size_t kReadBytes = 64 * 1024;  // one read; also what is searched of a channel for an error
constexpr int kReadsPerTurn = 16;              // then other descriptors get their turn
constexpr Millis kDrainTimeout{3000};  // for the log writer, and for whoever reads the rest of what was teed
constexpr Millis kFlushTimeout{1000};  // for the log writer, where an error is looked for
constexpr int kReadsToDrain = 64;  // 256 KiB in pieces of 4 KiB: more than a pipe or a pseudo-terminal holds

}  // namespace

void copy_window_size(int terminal, int reader) {
  winsize size{};
  if (::ioctl(terminal, TIOCGWINSZ, &size) == 0) ::ioctl(reader, TIOCSWINSZ, &size);
}

Result<OutputChannel> open_output_channel(int terminal) {
  if (terminal >= 0)
    if (auto channel = open_terminal(terminal))
      return channel;  // out of pseudo-terminals: a pipe still shows everything
  return open_pipe();
}

Result<FilteredLog> FilteredLog::create(std::string path, const std::vector<std::string>& texts) {
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  return FilteredLog(std::move(path), std::move(file), texts);
}

void FilteredLog::offer(std::string_view line, const std::function<std::string()>& prefix) {
  if (broken_) return;
  const bool wanted = std::ranges::any_of(
      *texts_, [&](const std::string& text) { return line.find(text) != std::string_view::npos; });
  if (wanted) taken_.append(prefix()).append(line).push_back('\n');
}

Result<void> FilteredLog::flush() {
  if (taken_.empty()) return {};
  auto written = write_all(file_.get(), taken_);
  taken_.clear();
  if (written) return {};
  broken_ = true;
  return fail("write " + path_ + ", which gets no more lines", std::move(written).error());
}

struct LogRouter::Follower {
  Follower(int rank, Std which, TailReader reader)
      : local_rank(rank), stream(which), file(std::move(reader)) {}

  int local_rank;
  Std stream;
  TailReader file;
  LineSplitter splitter;
  int watch = -1;
  FilteredLog* filtered = nullptr;
  bool waiting = false;               // for its next turn
  std::optional<std::uint64_t> left;  // the workers are gone: bytes to the end of the file
  bool ended = false;
};

struct LogRouter::Channel {
  explicit Channel(boost::asio::io_context& io) : reader(io) {}

  boost::asio::posix::stream_descriptor reader;
  bool open = false;
  std::uint64_t bytes = 0;  // read so far
  int local_rank = 0;
  Std stream = Std::kErr;
  OutputFormatter::Form form = OutputFormatter::Form::kBytes;
  LineSplitter splitter;  // with kLines
  TailBuffer tail;        // of stderr
  ErrorWatch errors;      // likewise
};

struct LogRouter::Worker {
  explicit Worker(boost::asio::io_context& io) : out(io), err(io) {}

  UniqueFd child_stdout, child_stderr;  // until started()
  Channel out, err;
  Std files = Std::kNone;                                      // the streams that go to files
  std::vector<std::shared_ptr<const LogStreamState>> rotated;  // of those that are rotated
};

LogRouter::LogRouter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
                     LogDirectory& directory, OutputSink& out, OutputSink& err, LogWriter* writer)
    : io_(io),
      job_(job),
      directory_(directory),
      terminals_{terminal(STDOUT_FILENO), terminal(STDERR_FILENO)},
      base_rank_(assignment.base_rank),
      formatter_(io, job, assignment, out, err),
      changes_(io),
      writer_(writer),
      drain_timer_(io),
      buffer_(kReadBytes, '\0') {
  workers_.resize(static_cast<std::size_t>(job.local_world_size));
  if (writer_ != nullptr)
    writer_->begin_attempt([this](std::string_view text) { formatter_.log(text); },
                           [this] {
                             for (const auto& follower : followers_) read_follower(*follower);
                           });
}

LogRouter::~LogRouter() {
  if (writer_ != nullptr) writer_->begin_attempt(nullptr, nullptr);
}

/// They are there even if no line ever is.
Result<void> LogRouter::open_filtered() {
  if (!directory_.enabled()) return {};
  const auto create = [&](const std::vector<std::string>& texts, const char* name,
                          std::optional<FilteredLog>& out) -> Result<void> {
    if (texts.empty() || out) return {};
    MUSTER_TRY(out, FilteredLog::create(directory_.attempt_file(name), texts));
    return {};
  };
  MUSTER_OK(create(job_.logs.stdout_filters, "filtered_stdout.log", filtered_out_));
  return create(job_.logs.stderr_filters, "filtered_stderr.log", filtered_err_);
}

Result<UniqueFd> LogRouter::open_file(int local_rank, Std stream, bool follow) {
  const std::string path = directory_.file(local_rank, stream == Std::kOut ? "stdout.log" : "stderr.log");
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  MUSTER_OK(directory_.name_by_rank(local_rank, stream == Std::kOut ? "out" : "err"));
  if (writer_ != nullptr) {
    MUSTER_TRY(LogWriter::Stream opened, writer_->open(base_rank_ + local_rank, std::move(file), path));
    file = std::move(opened.worker);
    workers_[static_cast<std::size_t>(local_rank)]->rotated.push_back(std::move(opened.state));
  }
  if (follow && formatter_.shown(local_rank)) {
    MUSTER_OK(this->follow(local_rank, stream, path));
  }
  return file;
}

Result<void> LogRouter::follow(int local_rank, Std stream, const std::string& path) {
  if (!changes_.is_open()) {
    UniqueFd notifier(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (!notifier) return fail(errno_error("inotify for -t; see fs.inotify.max_user_instances", errno));
    changes_.assign(notifier.release());
    follow_changes();
  }
  MUSTER_TRY(TailReader file, TailReader::open(path, older_files()));
  auto follower = std::make_unique<Follower>(local_rank, stream, std::move(file));
  auto& filtered = stream == Std::kOut ? filtered_out_ : filtered_err_;
  if (filtered) follower->filtered = &*filtered;
  followers_.push_back(std::move(follower));
  return watch(*followers_.back());
}

/// By its descriptor: the name may be another file's by now.
Result<void> LogRouter::watch(Follower& follower) {
  if (follower.watch >= 0) {
    watched_.erase(follower.watch);
    ::inotify_rm_watch(changes_.native_handle(), follower.watch);
  }
  const std::string file = fmt::format("/proc/self/fd/{}", follower.file.fd());
  follower.watch = ::inotify_add_watch(changes_.native_handle(), file.c_str(), IN_MODIFY);
  if (follower.watch < 0)
    return fail(errno_error("watch a log file; see fs.inotify.max_user_watches", errno));
  watched_[follower.watch] = &follower;
  return {};
}

Result<UniqueFd> LogRouter::open_channel(Channel& channel, int local_rank, Std stream,
                                         OutputFormatter::Form form) {
  MUSTER_TRY(OutputChannel ends, open_output_channel(stream == Std::kOut ? terminals_.out : terminals_.err));
  channel.reader.assign(ends.reader.release());
  channel.open = true;
  channel.local_rank = local_rank;
  channel.stream = stream;
  channel.form = form;
  read_channel(channel);
  return std::move(ends.writer);
}

Result<WorkerStreams> LogRouter::open(int local_rank) {
  MUSTER_OK(open_filtered());
  auto& slot = workers_[static_cast<std::size_t>(local_rank)];
  slot = std::make_unique<Worker>(io_);
  Worker& worker = *slot;
  const OutputFormatter::Form form = formatter_.form(local_rank);
  const Std tee = directory_.enabled() ? job_.logs.tee.of(local_rank) : Std::kNone;
  worker.files = directory_.enabled() ? job_.logs.redirects.of(local_rank) | tee : Std::kNone;

  if (has(worker.files, Std::kOut)) {
    MUSTER_TRY(worker.child_stdout, open_file(local_rank, Std::kOut, has(tee, Std::kOut)));
  } else if (form == OutputFormatter::Form::kHidden) {
    worker.child_stdout.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  } else if (form == OutputFormatter::Form::kLines || formatter_.shares(local_rank)) {
    MUSTER_TRY(worker.child_stdout, open_channel(worker.out, local_rank, Std::kOut, form));
  }
  if (has(worker.files, Std::kErr)) {
    MUSTER_TRY(worker.child_stderr, open_file(local_rank, Std::kErr, has(tee, Std::kErr)));
  } else {
    MUSTER_TRY(worker.child_stderr, open_channel(worker.err, local_rank, Std::kErr, form));
  }
  return WorkerStreams{worker.child_stdout.get(), worker.child_stderr.get()};
}

void LogRouter::started(int local_rank) {
  Worker& worker = *workers_[static_cast<std::size_t>(local_rank)];
  worker.child_stdout.reset();
  worker.child_stderr.reset();
}

void LogRouter::read_channel(Channel& channel) {
  lifetime_.when_readable(channel.reader, [this, &channel] {
    const bool shown = channel.form != OutputFormatter::Form::kHidden;
    for (int i = 0; i < kReadsPerTurn && channel.open; ++i) {
      if (shown && formatter_.backpressure(channel.stream))
        return formatter_.when_writable(channel.stream, lifetime_.guard([this, &channel] {
          if (channel.open) read_channel(channel);
        }));
      if (read_channel_once(channel) == 0) break;
    }
    if (channel.open) read_channel(channel);
  });
}

/// 0 when there is nothing to read now, or no more ever.
std::size_t LogRouter::read_channel_once(Channel& channel) {
  const auto emit = [&](std::string_view line) { formatter_.line(channel.local_rank, channel.stream, line); };
  const ssize_t n =
      retry_eintr([&] { return ::read(channel.reader.native_handle(), buffer_.data(), buffer_.size()); });
  if (n > 0) {
    const std::string_view bytes(buffer_.data(), static_cast<std::size_t>(n));
    channel.bytes += bytes.size();
    if (channel.stream == Std::kErr) {
      channel.tail.append(bytes);
      channel.errors.feed(bytes);  // 2 to 5 ns a byte where there is no error in it
    }
    if (channel.form == OutputFormatter::Form::kBytes)
      formatter_.bytes(channel.local_rank, channel.stream, bytes);
    if (channel.form == OutputFormatter::Form::kLines) {
      channel.splitter.feed(bytes, emit);
      formatter_.flush();
    }
    return bytes.size();
  }
  // A pseudo-terminal whose other end is closed everywhere reports EIO instead of end of file.
  if (n == 0 || errno != EAGAIN) {
    channel.open = false;
    boost::system::error_code ignored;
    channel.reader.close(ignored);
    channel.splitter.finish(emit);
    formatter_.flush();
  }
  return 0;
}

void LogRouter::follow_changes() {
  lifetime_.when_readable(changes_, [this] {
    alignas(inotify_event) char events[4096];
    const ssize_t n = retry_eintr([&] { return ::read(changes_.native_handle(), events, sizeof events); });
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      if ((event->mask & IN_Q_OVERFLOW) != 0) {
        for (const auto& follower : followers_) read_follower(*follower);
      } else if (const auto found = watched_.find(event->wd); found != watched_.end()) {
        read_follower(*found->second);
      }
    }
    follow_changes();
  });
}

void LogRouter::read_follower(Follower& follower) {
  if (follower.ended || follower.waiting) return;
  auto read_again = lifetime_.guard([this, &follower] {
    follower.waiting = false;
    read_follower(follower);
  });
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (formatter_.backpressure(follower.stream)) {
      follower.waiting = true;
      return formatter_.when_writable(follower.stream, read_again);
    }
    const std::size_t n = follower.file.read(buffer_.data(), buffer_.size());
    // What came between this read and the new watch is told by nobody.
    const bool went_on = follower.file.take_moved();
    if (went_on) moved(follower);
    feed(follower, std::string_view(buffer_.data(), n));
    if (follower.left) *follower.left -= std::min<std::uint64_t>(*follower.left, n);
    const bool at_end = n == 0 && !went_on;
    if (follower.left && (at_end || *follower.left == 0)) return end_follower(follower);
    if (at_end) return;
  }
  // There may be more, and nobody else to tell of it.
  follower.waiting = true;
  boost::asio::post(io_, read_again);
}

void LogRouter::feed(Follower& follower, std::string_view bytes) {
  const auto emit = [&](std::string_view line) {
    formatter_.line(follower.local_rank, follower.stream, line);
    if (follower.filtered != nullptr)
      follower.filtered->offer(line, [&] { return formatter_.prefix(follower.local_rank); });
  };
  follower.ended ? follower.splitter.finish(emit) : follower.splitter.feed(bytes, emit);
  formatter_.flush();
  if (follower.filtered == nullptr) return;
  if (const auto flushed = follower.filtered->flush(); !flushed) formatter_.log(flushed.error().message);
}

/// On to the next of the rotated files.
void LogRouter::moved(Follower& follower) {
  if (follower.file.take_skipped())
    formatter_.log(
        fmt::format("log files of local_rank {} were rotated away before they could be shown; a larger "
                    "--log-max-size or --log-keep gives the terminal more time",
                    follower.local_rank));
  if (auto watched = watch(follower); !watched) formatter_.log(watched.error().message);
}

/// Bounded: a process that left its worker's group may still be writing, and for ever.
void LogRouter::drain(std::function<void()> done) {
  drained_ = std::move(done);
  for (auto& worker : workers_) {
    if (!worker) continue;
    for (Channel* channel : {&worker->out, &worker->err}) {
      for (int i = 0; i < kReadsToDrain && channel->open && read_channel_once(*channel) > 0; ++i) {
      }
      channel->splitter.finish(
          [&](std::string_view line) { formatter_.line(channel->local_rank, channel->stream, line); });
    }
  }
  if (writer_ == nullptr) return drain_followers();
  writer_->flush(lifetime_.guard([this] { drain_followers(); }));
  if (draining_) return;
  lifetime_.call_at(drain_timer_, SteadyClock::now() + kDrainTimeout, [this] {
    if (draining_) return;
    formatter_.log(
        fmt::format("the log files are not complete yet: the disk takes longer than {} s. Process {} goes on "
                    "writing them",
                    kDrainTimeout.count() / 1000, writer_->pid()));
    drain_followers();
  });
}

void LogRouter::drain_followers() {
  if (std::exchange(draining_, true)) return;
  for (const auto& follower : followers_) follower->left = follower->file.left();
  await_followers();
  for (const auto& follower : followers_) read_follower(*follower);
  end_drain();
}

/// As long as somebody takes what they read, however slowly.
void LogRouter::await_followers() {
  const auto left = [this] {
    std::uint64_t bytes = 0;
    for (const auto& follower : followers_) bytes += *follower->left;
    return bytes;
  };
  lifetime_.call_at(drain_timer_, SteadyClock::now() + kDrainTimeout, [this, left, before = left()] {
    if (left() < before) return await_followers();
    for (const auto& follower : followers_) {
      if (follower->ended) continue;
      formatter_.log(
          fmt::format("the last {} bytes of local_rank {} were not shown, because nobody read them; its log "
                      "file has them",
                      *follower->left, follower->local_rank));
      end_follower(*follower);
    }
  });
}

void LogRouter::end_follower(Follower& follower) {
  follower.ended = true;
  feed(follower, {});
  end_drain();
}

void LogRouter::end_drain() {
  const bool over = std::ranges::all_of(followers_, [](const auto& each) { return each->ended; });
  if (!over || !drained_) return;
  drain_timer_.cancel();
  formatter_.finish();
  std::exchange(drained_, {})();
}

void LogRouter::window_changed() {
  for (const auto& worker : workers_) {
    if (!worker) continue;
    if (worker->out.open) copy_window_size(terminals_.out, worker->out.reader.native_handle());
    if (worker->err.open) copy_window_size(terminals_.err, worker->err.reader.native_handle());
  }
}

std::vector<LogRouter::StderrSearch> LogRouter::stderr_searches(const std::vector<int>& local_ranks,
                                                                std::size_t lines) {
  /// Of the files: how large they are, as soon as the log writer has written what it has.
  struct Sizes {
    std::promise<std::vector<off_t>> promise;
    std::shared_future<std::vector<off_t>> known = promise.get_future();
  };
  const auto sizes = std::make_shared<Sizes>();
  const Instant until = SteadyClock::now() + kFlushTimeout;
  std::vector<std::string> paths;
  std::vector<StderrSearch> out;
  for (const int local_rank : local_ranks) {
    const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
    if (!worker || !has(worker->files, Std::kErr)) {
      out.push_back(
          [found = worker ? search_channel(worker->err, lines) : StderrFinding()] { return found; });
      continue;
    }
    std::string path = directory_.file(local_rank, "stderr.log");
    paths.push_back(path);
    out.push_back(
        [path = std::move(path), index = paths.size() - 1, keep = older_files(), sizes, until, lines] {
          const bool known = sizes->known.wait_until(until) == std::future_status::ready;
          StderrFinding found{
              find_error_in_log(path, keep,
                                known ? sizes->known.get()[index] : std::numeric_limits<off_t>::max()),
              {}};
          if (lines > 0) found.last_lines = last_lines_of_log(path, lines);
          if (!found.error && is_disk_full(path))
            found.no_room = {CauseClass::kExitCode, fmt::format("{}: {}", path, errno_text(ENOSPC))};
          return found;
        });
  }
  if (paths.empty()) return out;
  const auto measure = [sizes, paths = std::move(paths)] {
    std::vector<off_t> all;
    for (const std::string& path : paths) {
      struct stat info {};
      all.push_back(::stat(path.c_str(), &info) == 0 ? info.st_size : 0);
    }
    sizes->promise.set_value(std::move(all));
  };
  writer_ == nullptr ? measure() : writer_->flush(measure);
  return out;
}

LogRouter::StderrFinding LogRouter::search_channel(Channel& channel, std::size_t lines) {
  // No more than the channel holds: what comes later was not there when it was asked for.
  for (std::size_t bytes = 0, n = 1; n > 0 && bytes < kReadBytes && channel.open; bytes += n)
    n = read_channel_once(channel);
  ErrorWatch watch = channel.errors;  // a copy: the last line may go on
  watch.finish();
  return {watch.found(), channel.tail.last_lines(lines)};
}

bool LogRouter::is_blocked(Std stream) const {
  pollfd room{stream == Std::kOut ? STDOUT_FILENO : STDERR_FILENO, POLLOUT, 0};
  return ::poll(&room, 1, 0) == 0;
}

/// Only a stream that passes through here can be held up by the launcher's own.
bool LogRouter::backpressure(int local_rank, Std stream) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  return worker && (stream == Std::kOut ? worker->out : worker->err).open && formatter_.shown(local_rank) &&
         formatter_.backpressure(stream);
}

bool LogRouter::has_file(int local_rank, Std stream) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  return worker && has(worker->files, stream);
}

std::uint64_t LogRouter::output_so_far(int local_rank) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return 0;
  std::uint64_t out = worker->out.bytes + worker->err.bytes;
  // Of a disk that is full the files say nothing: the worker writes on. A fresh file begins at 0 again.
  for (const auto& state : worker->rotated)
    out += state->missing + state->rotations * (job_.logs.rotation.max_bytes + RotatingFile::kLongestLine);
  for (const char* name : {"stdout.log", "stderr.log"}) {
    struct stat info {};
    if (directory_.enabled() && ::stat(directory_.file(local_rank, name).c_str(), &info) == 0)
      out += static_cast<std::uint64_t>(info.st_size);
  }
  return out;
}

/// With --view=all a worker's stdout is inherited and passes by: its silence means nothing then.
bool LogRouter::sees_stdout(int local_rank) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  return worker && (worker->out.open || worker->out.bytes > 0 || has(worker->files, Std::kOut));
}

WorkerFiles LogRouter::worker_files() {
  return {[this](int rank) { return open(rank); }, [this](int rank) { started(rank); },
          [this](int rank) { return directory_.file(rank, "error.json"); },
          [this](int rank) { return directory_.progress_file(rank); }};
}

/// How many files a reader of a log has to look for beside the current one.
int LogRouter::older_files() const {
  return writer_ == nullptr ? 0 : job_.logs.rotation.keep;
}

}  // namespace muster::launcher
