// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_router.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/output/output_channel.h"
#include "launcher/output/routed_worker.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr int kReadsPerTurn = 16;                  // then other descriptors get their turn
constexpr std::chrono::seconds kDrainPatience{3};  // for whoever reads the rest of what was teed
constexpr int kReadsToDrain = 64;  // 256 KiB in pieces of 4 KiB: more than a pipe or a pseudo-terminal holds

}  // namespace

LogRouter::LogRouter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
                     LogDirectory& directory, OutputSink& out, OutputSink& err, Terminals terminals,
                     LogWriter* writer)
    : io_(io),
      job_(job),
      directory_(directory),
      terminals_(terminals),
      base_rank_(assignment.base_rank),
      screen_(io, job, assignment, out, err),
      changes_(io),
      buffer_(kReadBytes, '\0'),
      alive_(std::make_shared<bool>(true)) {
  workers_.resize(static_cast<std::size_t>(job.local_world_size));
  if (writer != nullptr)
    rotated_.emplace(
        io, *writer, [this](std::string_view text) { screen_.say(text); },
        [this] {
          for (const auto& follower : followers_) read_follower(*follower, false);
        });
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
  if (const auto flushed = filtered->flush(); !flushed) screen_.say(flushed.error().message);
}

Result<UniqueFd> LogRouter::open_file(int local_rank, Std stream, bool follow) {
  const std::string path = directory_.file(local_rank, stream == Std::kOut ? "stdout.log" : "stderr.log");
  UniqueFd file(retry_eintr(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!file) return fail(errno_error("create " + path, errno));
  MUSTER_TRY(const std::string link,
             directory_.name_by_rank(local_rank, stream == Std::kOut ? "out" : "err"));
  std::shared_ptr<const LogStreamState> state;
  if (rotated_) {
    MUSTER_TRY(LogWriter::Stream opened,
               rotated_->open(base_rank_ + local_rank, std::move(file), path, link));
    file = std::move(opened.worker);
    state = std::move(opened.state);
    workers_[static_cast<std::size_t>(local_rank)]->rotated.push_back(state);
    if (stream == Std::kErr) {
      MUSTER_TRY(FollowedFile searched, FollowedFile::open(path, state, job_.logs.rotation.keep));
      workers_[static_cast<std::size_t>(local_rank)]->stderr_file->rotates(std::move(searched));
    }
  }
  if (follow && screen_.shown(local_rank)) {
    MUSTER_OK(this->follow(local_rank, stream, path, std::move(state)));
  }
  return file;
}

Result<void> LogRouter::follow(int local_rank, Std stream, const std::string& path,
                               std::shared_ptr<const LogStreamState> state) {
  if (!changes_.is_open()) {
    UniqueFd notifier(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    if (!notifier) return fail(errno_error("inotify for -t; see fs.inotify.max_user_instances", errno));
    changes_.assign(notifier.release());
    follow_changes();
  }
  MUSTER_TRY(FollowedFile file, FollowedFile::open(path, std::move(state), job_.logs.rotation.keep));
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
    worker.stdout_path = directory_.file(local_rank, "stdout.log");
  } else if (form == Screen::Form::kHidden) {
    worker.child_stdout.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  } else if (form == Screen::Form::kLines || screen_.shares(local_rank)) {
    MUSTER_TRY(worker.child_stdout, open_channel(worker.out, local_rank, Std::kOut, form));
  }
  if (has(files, Std::kErr)) {
    worker.stderr_path = directory_.file(local_rank, "stderr.log");
    worker.stderr_file.emplace(worker.stderr_path);
    MUSTER_TRY(worker.child_stderr, open_file(local_rank, Std::kErr, has(tee, Std::kErr)));
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
    channel.bytes += bytes.size();
    if (channel.stream == Std::kErr) {
      channel.tail.append(bytes);
      channel.errors.feed(bytes);  // 2 to 5 ns a byte where there is no error in it
    }
    if (channel.form == Screen::Form::kBytes) screen_.bytes(channel.local_rank, channel.stream, bytes);
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
        for (const auto& follower : followers_) read_follower(*follower, false);
      } else if (const auto found = watched_.find(event->wd); found != watched_.end()) {
        read_follower(*found->second, false);
      }
    }
    follow_changes();
  });
}

void LogRouter::read_follower(Follower& follower, bool to_the_end) {
  const auto emit = [&](std::string_view line) {
    screen_.line(follower.local_rank, follower.stream, line);
    if (follower.filtered != nullptr) follower.filtered->offer(screen_.prefix(follower.local_rank), line);
  };
  const auto read_again = [this, &follower, alive = alive_] {
    if (!*alive) return;
    follower.waiting = false;
    read_follower(follower, false);
  };
  std::uint64_t left = to_the_end ? follower.file.left() : kReadsPerTurn * kReadBytes;
  while (left > 0) {
    // Nobody was slowed while this grew: it may be more than memory holds.
    if (to_the_end && screen_.congested(follower.stream) &&
        !screen_.make_room(follower.stream, drained_by_)) {
      screen_.say(
          fmt::format("the last {} bytes of local_rank {} are not shown, since nobody reads them; its file "
                      "has them",
                      left, follower.local_rank));
      break;
    }
    if (!to_the_end && screen_.congested(follower.stream)) {
      if (!std::exchange(follower.waiting, true)) screen_.when_clear(follower.stream, read_again);
      return;
    }
    const std::size_t n = follower.file.read(buffer_.data(), buffer_.size());
    // What came between this read and the new watch is told by nobody.
    const bool went_on = follower.file.take_moved();
    if (went_on) moved(follower);
    if (n == 0 && !went_on) break;
    left -= std::min<std::uint64_t>(left, n);
    follower.splitter.feed(std::string_view(buffer_.data(), n), emit);
    screen_.flush();
    flush(follower.filtered);
  }
  if (!to_the_end) {
    // There may be more, and nobody else to tell of it.
    if (left == 0 && !std::exchange(follower.waiting, true)) boost::asio::post(io_, read_again);
    return;
  }
  follower.splitter.finish(emit);
  screen_.flush();
  flush(follower.filtered);
}

/// On to the next of the rotated files.
void LogRouter::moved(Follower& follower) {
  if (const std::uint64_t skipped = follower.file.take_skipped(); skipped > 0)
    screen_.say(
        fmt::format("{} log files of local_rank {} were rotated away before they could be shown; a larger "
                    "--log-max-size or --log-keep gives the terminal more time",
                    skipped, follower.local_rank));
  if (auto watched = watch(follower); !watched) screen_.say(watched.error().message);
}

/// Bounded: a process that left its worker's group may still be writing, and for ever.
void LogRouter::drain() {
  for (auto& worker : workers_) {
    if (!worker) continue;
    for (Channel* channel : {&worker->out, &worker->err}) {
      for (int i = 0; i < kReadsToDrain && channel->open && read_channel_once(*channel) > 0; ++i) {
      }
      channel->splitter.finish(
          [&](std::string_view line) { screen_.line(channel->local_rank, channel->stream, line); });
    }
  }
  if (rotated_) rotated_->finish(kDrainPatience);
  drained_by_ = SteadyClock::now() + kDrainPatience;
  for (const auto& follower : followers_) read_follower(*follower, true);
  screen_.finish();
}

void LogRouter::window_changed() {
  for (const auto& worker : workers_) {
    if (!worker) continue;
    if (worker->out.open) copy_window_size(terminals_.out, worker->out.reader.native_handle());
    if (worker->err.open) copy_window_size(terminals_.err, worker->err.reader.native_handle());
  }
}

}  // namespace muster::launcher
