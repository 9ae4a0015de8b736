// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_writer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_map>
#include <utility>

#include <boost/system/system_error.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr Millis kWriterEndTimeout{3000};
// More in a pipe means fewer turns between its ends. The kernel may give less, or refuse.
constexpr int kPipeBytes = 256 * 1024;
constexpr std::size_t kWriterReadBytes = 256 * 1024;
constexpr std::size_t kMaxPathBytes = 4096;
constexpr int kReadsToFlush = 16;  // more than any pipe holds: who writes on is not waited for
constexpr std::size_t kDescriptors = 2;

/// To the writer, with SOCK_SEQPACKET. To open a stream: with its pipe and its file, in this order, and
/// behind the request its path.
struct Request {
  enum class Kind : std::uint64_t { kOpen, kFlush };
  Kind kind;
  std::uint64_t number;  // of the stream, or of the flush
};

constexpr std::uint64_t kNoStream = UINT64_MAX;

/// From the writer.
struct Report {
  std::uint64_t stream = kNoStream;
  std::uint64_t flushed = 0;  // of kNoStream: the last flush that is done
  LogStreamState state;
};

/// kTimeout: there is no room in the channel within `timeout`.
Result<void> send(int channel, const Request& request, Millis timeout, const std::string& path = {},
                  const std::array<int, kDescriptors>* descriptors = nullptr) {
  std::array<iovec, 2> parts{
      {{const_cast<Request*>(&request), sizeof request}, {const_cast<char*>(path.data()), path.size()}}};
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
  while (retry_eintr([&] { return ::sendmsg(channel, &message, MSG_NOSIGNAL); }) < 0) {
    if (errno != EAGAIN) return fail(errno_error("send to the log writer", errno));
    if (!wait_until_ready(channel, POLLOUT, after(timeout)))
      return fail(ErrorCode::kTimeout, "the log writer takes no requests: the disk is slow");
  }
  return {};
}

/// Behind the first line end from `from` on; all of it where there is none.
std::size_t line_end(std::string_view bytes, std::size_t from = 0) {
  return std::min(bytes.find('\n', from), bytes.size() - 1) + 1;
}

/// The writer's loop: until the launcher and all pipes are gone.
class WriterLoop {
 public:
  WriterLoop(int channel, Rotation rules)
      : channel_(channel),
        rules_(rules),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        buffer_(kWriterReadBytes, '\0') {
    watch(channel_, EPOLL_CTL_ADD, EPOLLIN);
  }

  void run() {
    std::array<epoll_event, 64> events{};
    while (listening_ || !streams_.empty()) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        const int fd = event.data.fd;
        if (fd == channel_) {
          if ((event.events & EPOLLOUT) != 0) report();
          if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0) receive();
        } else if (const auto found = streams_.find(fd); found != streams_.end()) {
          if (!copy(found->second)) streams_.erase(found);
          report();
        }
      }
    }
  }

 private:
  struct Stream {
    std::uint64_t number = 0;
    UniqueFd pipe;
    RotatingFile file;
  };

  void watch(int fd, int what, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    ::epoll_ctl(epoll_.get(), what, fd, &event);
  }

  /// One read. False: there are no more to come.
  bool copy(Stream& stream, bool* empty = nullptr) {
    const ssize_t n = retry_eintr([&] { return ::read(stream.pipe.get(), buffer_.data(), buffer_.size()); });
    if (empty != nullptr) *empty = n <= 0;
    if (n <= 0) return n < 0 && errno == EAGAIN;
    const LogStreamState before = stream.file.state();
    stream.file.write(std::string_view(buffer_.data(), static_cast<std::size_t>(n)));
    if (stream.file.state() != before) changed_[stream.number] = stream.file.state();
    return true;
  }

  /// What is in the pipes now goes to the files; what workers write meanwhile may wait for the loop.
  void flush(std::uint64_t number) {
    for (auto at = streams_.begin(); at != streams_.end();) {
      bool more = true, empty = false;
      for (int i = 0; i < kReadsToFlush && more && !empty; ++i) more = copy(at->second, &empty);
      at = more ? std::next(at) : streams_.erase(at);
    }
    flushed_ = number;
    changed_.try_emplace(kNoStream);
  }

  /// The launcher may be busy, stopped or gone: what it does not take now it gets when it does.
  void report() {
    while (listening_ && !changed_.empty()) {
      const auto next = changed_.begin();
      const Report report{next->first, flushed_, next->second};
      const bool sent = ::send(channel_, &report, sizeof report, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
      if (sent == waiting_) {
        waiting_ = !sent;
        watch(channel_, EPOLL_CTL_MOD, waiting_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
      }
      if (!sent) return;
      changed_.erase(next);
    }
  }

  /// One request. The end of the channel is the launcher's end, not this process': workers may still write.
  void receive() {
    std::array<char, sizeof(Request) + kMaxPathBytes> block{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> ancillary{};
    iovec part{block.data(), block.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.data();
    message.msg_controllen = ancillary.size();
    const ssize_t n = retry_eintr([&] { return ::recvmsg(channel_, &message, MSG_CMSG_CLOEXEC); });
    Request request{};
    if (n < static_cast<ssize_t>(sizeof request)) {
      // The launcher is gone; what its workers still write is written.
      listening_ = false;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel_, nullptr);
      return;
    }
    std::memcpy(&request, block.data(), sizeof request);
    if (request.kind == Request::Kind::kFlush) {
      flush(request.number);
      return report();
    }
    std::array<int, kDescriptors> fds{-1, -1};
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
        header != nullptr && header->cmsg_len == CMSG_LEN(sizeof fds))
      std::memcpy(fds.data(), CMSG_DATA(header), sizeof fds);
    UniqueFd pipe(fds[0]), file(fds[1]);
    if (!pipe || !file) return;  // the worker sees a broken pipe
    std::string path(block.data() + sizeof request, static_cast<std::size_t>(n) - sizeof request);
    const int fd = pipe.get();
    watch(fd, EPOLL_CTL_ADD, EPOLLIN);
    streams_.emplace(
        fd, Stream{request.number, std::move(pipe), RotatingFile(std::move(file), std::move(path), rules_)});
  }

  int channel_;
  Rotation rules_;
  UniqueFd epoll_;
  std::string buffer_;
  std::unordered_map<int, Stream> streams_;  // by the pipe's descriptor
  // Not told yet, by stream. A flush comes last: the launcher knows by it that it has been told all.
  std::map<std::uint64_t, LogStreamState> changed_;
  std::uint64_t flushed_ = 0;
  bool listening_ = true;
  bool waiting_ = false;  // for room in the channel
};

}  // namespace

/// One worker's stream, as the launcher keeps it: the writer may be killed.
struct LogWriter::Open {
  int rank;
  std::string path;
  std::shared_ptr<LogStreamState> state = std::make_shared<LogStreamState>();
  LogStreamState logged = {};
  UniqueFd reader = {};  // of its pipe: open here too, so that no worker sees a broken one
};

Result<std::unique_ptr<LogWriter>> LogWriter::start(boost::asio::io_context& io, Rotation rules) {
  const auto body = [rules](int channel) {
    raise_descriptor_limit();
    WriterLoop(channel, rules).run();
  };
  MUSTER_TRY(
      HelperProcess process,
      HelperProcess::start({.name = "job-logs", .outlives_us = true, .socket_type = SOCK_SEQPACKET}, body));
  UniqueFd channel(::fcntl(process.channel(), F_DUPFD_CLOEXEC, 3));
  if (!channel) return fail(errno_error("a channel to the log writer", errno));
  process.close_channel();
  return std::unique_ptr<LogWriter>(new LogWriter(io, rules, std::move(process), std::move(channel)));
}

LogWriter::LogWriter(boost::asio::io_context& io, Rotation rules, HelperProcess process, UniqueFd channel)
    : rules_(rules), process_(std::move(process)), channel_(io, channel.release()) {
  receive();
}

/// The writer ends by itself when the workers' pipes and this channel are at their end.
LogWriter::~LogWriter() {
  begin_attempt(nullptr, nullptr);
  boost::system::error_code ignored;
  channel_.close(ignored);
  if (thread_ended_.valid())
    (void)thread_ended_.wait_for(kWriterEndTimeout);
  else
    process_.wait(SteadyClock::now() + kWriterEndTimeout);
}

void LogWriter::log(std::string_view text) {
  if (log_) log_(text);
}

void LogWriter::begin_attempt(std::function<void(std::string_view)> log, std::function<void()> rotated) {
  log_ = std::move(log);
  rotated_ = std::move(rotated);
  first_ += streams_.size();
  streams_.clear();
}

Result<LogWriter::Stream> LogWriter::open(int rank, UniqueFd file, const std::string& path) {
  if (path.size() > kMaxPathBytes) return fail(ErrorCode::kInvalidArgument, "the path is too long: " + path);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error("pipe for a worker's output", errno));
  Open& stream = *streams_.emplace_back(std::make_unique<Open>(Open{rank, path}));
  stream.reader.reset(ends[0]);
  Stream out{UniqueFd(ends[1]), stream.state};
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);
  const std::array<int, kDescriptors> descriptors{ends[0], file.get()};
  const auto sent = send(channel_.native_handle(), {Request::Kind::kOpen, first_ + streams_.size() - 1},
                         kWriterEndTimeout, path, &descriptors);
  // Else it was killed this moment, and its successor gets the stream.
  if (sent || sent.error().code != ErrorCode::kTimeout) return out;
  log(fmt::format("rank {}: {}; the worker writes {} itself, which is not rotated", rank,
                  sent.error().message, path));
  stream.reader.reset();
  return Stream{std::move(file), stream.state};
}

void LogWriter::receive() {
  lifetime_.when_readable(channel_, [this] {
    while (receive_one()) {
    }
    for (const auto& stream : streams_) log_changes(*stream);
    if (rotated_) rotated_();
    receive();
  });
}

/// False: there is no message now, or no more ever.
bool LogWriter::receive_one() {
  Report report;
  const ssize_t n =
      retry_eintr([&] { return ::recv(channel_.native_handle(), &report, sizeof report, MSG_DONTWAIT); });
  if (n < 0 && errno == EAGAIN) return false;
  if (n != static_cast<ssize_t>(sizeof report)) {
    replace_writer();
    return false;
  }
  if (report.stream == kNoStream) {
    for (const auto& stream : streams_) log_changes(*stream);
    // An answer is one to those before it, too.
    for (; flushed_ < report.flushed && !flushes_.empty(); ++flushed_) {
      const auto done = std::move(flushes_.front());
      flushes_.pop_front();
      done();
    }
  }
  if (report.stream >= first_ && report.stream < first_ + streams_.size())
    *streams_[report.stream - first_]->state = report.state;
  return true;
}

/// By a thread, which gets all that the writer had.
void LogWriter::replace_writer() {
  log(fmt::format(
      "the log writer (pid {}) was killed. muster writes the log files itself from now on. Up to {} KiB "
      "of one rank's output may be missing",
      process_.pid(), kWriterReadBytes / 1024));
  boost::system::error_code ignored;
  channel_.close(ignored);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw boost::system::system_error(errno, boost::system::system_category());  // as the loop does
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  channel_.assign(ends[0]);
  const auto ended = std::make_shared<std::promise<void>>();
  thread_ended_ = ended->get_future();
  auto thread = start_quiet_thread([channel = ends[1], rules = rules_, ended] {
    const UniqueFd owned(channel);
    WriterLoop(channel, rules).run();
    ended->set_value();
  });
  if (!thread) throw boost::system::system_error(EAGAIN, boost::system::system_category());
  thread->detach();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const Open& stream = *streams_[i];
    if (!stream.reader) continue;  // the worker has the file itself
    UniqueFd file(retry_eintr(
        [&] { return ::open(stream.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666); }));
    if (!file) {  // it is lost then, but the worker does not wait for a reader
      log(errno_error(fmt::format("rank {}: open {}", stream.rank, stream.path), errno).message +
          "; its output is lost");
      file.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    }
    const std::array<int, kDescriptors> descriptors{stream.reader.get(), file.get()};
    (void)send(channel_.native_handle(), {Request::Kind::kOpen, first_ + i}, kWriterEndTimeout, stream.path,
               &descriptors);
  }
  if (!flushes_.empty()) request_flush();
}

/// Each trouble is logged once when it begins, and its end with what was lost in between.
void LogWriter::log_changes(Open& stream) {
  const LogStreamState& now = *stream.state;
  LogStreamState& before = stream.logged;
  if (now.error != 0 && before.error == 0) {
    log(fmt::format("rank {}: write {}: {}. The worker goes on; its output is lost until there is room again",
                    stream.rank, stream.path, errno_text(now.error)));
  } else if (now.error == 0 && before.error != 0) {
    log(fmt::format("rank {}: {} is written again; {} bytes are missing in it", stream.rank, stream.path,
                    now.missing - std::exchange(before.missing, now.missing)));
  }
  if (now.rotation_error != 0 && before.rotation_error == 0)
    log(fmt::format("rank {}: rotate {}: {}. The file grows beyond --log-max-size", stream.rank, stream.path,
                    errno_text(now.rotation_error)));
  before.error = now.error;
  before.rotation_error = now.rotation_error;
}

void LogWriter::flush(std::function<void()> done) {
  flushes_.push_back(std::move(done));
  request_flush();
}

void LogWriter::request_flush() {
  const auto sent =
      send(channel_.native_handle(), {Request::Kind::kFlush, flushed_ + flushes_.size()}, Millis(0));
  if (sent || sent.error().code != ErrorCode::kTimeout) return;  // as in open()
  channel_.async_wait(boost::asio::posix::descriptor_base::wait_write,
                      lifetime_.guard([this](const auto& error) {
                        if (!error && !flushes_.empty()) request_flush();
                      }));
}

RotatingFile::RotatingFile(UniqueFd file, std::string path, Rotation rules)
    : file_(std::move(file)),
      path_(std::move(path)),
      rules_(rules),
      limit_(rules.max_bytes > 0 ? rules.max_bytes : INT64_MAX) {
  struct stat info {};
  if (::fstat(file_.get(), &info) == 0) size_ = static_cast<std::uint64_t>(info.st_size);
  while (held_ < rules.keep && ::access(fmt::format("{}.{}", path_, held_ + 1).c_str(), F_OK) == 0) ++held_;
}

void RotatingFile::write(std::string_view bytes) {
  if (state_.error != 0) bytes = resume(bytes);
  while (!bytes.empty() && state_.error == 0) {
    if (size_ >= limit_ && (line_ended_ || size_ >= limit_ + kLongestLine)) rotate();
    // The line that reaches the limit is the file's last one.
    const std::uint64_t room = limit_ > size_ ? limit_ - size_ : 1;
    const std::size_t cut = room > bytes.size()
                                ? bytes.size()
                                : std::min(line_end(bytes, room - 1), limit_ + kLongestLine - size_);
    put(bytes.substr(0, cut));
    bytes.remove_prefix(cut);
    if (state_.error != 0) drop(bytes);
  }
}

void RotatingFile::put(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = retry_eintr([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
    if (n < 0) {
      state_.error = errno;
      torn_ = !line_ended_;
      return drop(bytes);
    }
    size_ += static_cast<std::uint64_t>(n);
    line_ended_ = bytes[static_cast<std::size_t>(n) - 1] == '\n';
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// Counts what cannot be written. Writing goes on at the beginning of a line.
void RotatingFile::drop(std::string_view bytes) {
  if (bytes.empty()) return;
  state_.missing += bytes.size();
  line_ended_ = bytes.back() == '\n';
}

/// Tries to write again, and returns what is left to be written.
std::string_view RotatingFile::resume(std::string_view bytes) {
  if (!line_ended_) {
    const std::size_t end = line_end(bytes);
    drop(bytes.substr(0, end));
    bytes.remove_prefix(end);
  }
  if (bytes.empty()) return bytes;
  const std::string note = fmt::format("{}muster: {} bytes are missing here: {}\n", torn_ ? "\n" : "",
                                       state_.missing - announced_, errno_text(state_.error));
  const ssize_t n = retry_eintr([&] { return ::write(file_.get(), note.data(), note.size()); });
  if (n != static_cast<ssize_t>(note.size())) {
    // Half a note helps nobody.
    if (n > 0) (void)::ftruncate(file_.get(), static_cast<off_t>(size_));
    drop(bytes);
    return {};
  }
  size_ += note.size();
  announced_ = state_.missing;
  torn_ = false;
  state_.error = 0;
  line_ended_ = true;
  return bytes;
}

/// <path>.new becomes <path>; at each moment <path> exists, unless the file system knows no hard links.
void RotatingFile::rotate() {
  const auto name = [&](int number) { return fmt::format("{}.{}", path_, number); };
  const std::string draft = path_ + ".new";
  UniqueFd fresh(retry_eintr(
      [&] { return ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666); }));
  if (!fresh) {
    state_.rotation_error = errno;
    limit_ = size_ + rules_.max_bytes;  // larger is better than lost; tried again then
    return;
  }
  for (int number = std::min(held_, rules_.keep - 1); number >= 1; --number)
    (void)::rename(name(number).c_str(), name(number + 1).c_str());  // one that somebody has removed
  const std::string newest = name(1);
  if (held_ > 0 && rules_.keep == 1) ::unlink(newest.c_str());
  state_.rotation_error = 0;
  if (::link(path_.c_str(), newest.c_str()) != 0 && ::rename(path_.c_str(), newest.c_str()) != 0)
    state_.rotation_error = errno;
  if (::rename(draft.c_str(), path_.c_str()) != 0) state_.rotation_error = errno;
  file_ = std::move(fresh);
  size_ = 0;
  limit_ = rules_.max_bytes;
  held_ = std::min(held_ + 1, rules_.keep);
  ++state_.rotations;
}

}  // namespace muster::launcher
