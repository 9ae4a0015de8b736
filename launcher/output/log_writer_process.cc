// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_writer_process.h"

#include <array>
#include <cstring>
#include <fcntl.h>
#include <linux/close_range.h>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unordered_map>
#include <utility>

#include "launcher/output/rotating_file.h"
#include "launcher/output/shared_memory.h"
#include "launcher/text/process_title.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher::log_writer {
namespace {

constexpr int kReadsToSettle = 16;  // more than any pipe holds: who writes on is not waited for
constexpr int kFirstDescriptor = 3;

struct Stream {
  UniqueFd pipe;
  std::shared_ptr<LogStreamState> state;
  std::optional<RotatingFile> file;
  std::uint64_t missing_before = 0;  // when a former writer had it
};

class Writer {
 public:
  Writer(int control, LogWriterState& state, Rotation rules)
      : control_(control),
        state_(state),
        rules_(rules),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        buffer_(kReadBytes, '\0') {
    watch(control_);
  }

  void run() {
    std::array<epoll_event, 64> events{};
    while (listening_ || !streams_.empty()) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd == control_) {
          obey();
        } else if (const auto found = streams_.find(fd); found != streams_.end()) {
          if (!carry(found->second)) streams_.erase(found);
        }
      }
    }
  }

 private:
  void watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }

  /// The launcher may be busy, stopped or gone: it looks when it can.
  void ring() const {
    const char bell = 0;
    (void)::send(control_, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  /// One read. False: there are no more to come.
  bool carry(Stream& stream, bool* empty = nullptr) {
    LogStreamState& state = *stream.state;
    state.in_hand.store(true);
    const ssize_t n = retry_eintr([&] { return ::read(stream.pipe.get(), buffer_.data(), buffer_.size()); });
    const int read_errno = errno;
    if (n <= 0) state.in_hand.store(false);
    if (empty != nullptr) *empty = n <= 0;
    if (n < 0 && read_errno == EAGAIN) return true;
    if (n <= 0) {
      state.ended.store(true);
      return false;
    }
    state.taken.fetch_add(static_cast<std::uint64_t>(n));
    RotatingFile& file = *stream.file;
    state_.writing_since.store(SteadyClock::now().time_since_epoch().count());
    file.write(std::string_view(buffer_.data(), static_cast<std::size_t>(n)));
    state_.writing_since.store(0);
    const bool changed =
        stream.state->error.exchange(file.error()) != file.error() ||
        stream.state->rotation_error.exchange(file.rotation_error()) != file.rotation_error();
    state.missing.store(stream.missing_before + file.missing());
    state.done.store(state.taken.load());
    state.in_hand.store(false);
    if (changed) ring();
    return true;
  }

  void settle(std::uint64_t number) {
    for (auto at = streams_.begin(); at != streams_.end();) {
      bool more = true, empty = false;
      for (int i = 0; i < kReadsToSettle && more && !empty; ++i) more = carry(at->second, &empty);
      at = more ? std::next(at) : streams_.erase(at);
    }
    state_.settled.store(number);
    ring();
  }

  void obey() {
    std::array<char, sizeof(Request) + 2 * kMaxPathBytes> block{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))> ancillary{};
    iovec part{block.data(), block.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.data();
    message.msg_controllen = ancillary.size();
    const ssize_t n = retry_eintr([&] { return ::recvmsg(control_, &message, MSG_CMSG_CLOEXEC); });
    Request request;
    if (n < static_cast<ssize_t>(sizeof request)) {
      // The launcher is gone; what its workers still write is written.
      listening_ = false;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, control_, nullptr);
      return;
    }
    std::memcpy(&request, block.data(), sizeof request);
    if (request.kind == Request::Kind::kSettle) return settle(request.number);
    std::array<int, kDescriptors> fds{-1, -1, -1};
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
        header != nullptr && header->cmsg_len == CMSG_LEN(sizeof fds))
      std::memcpy(fds.data(), CMSG_DATA(header), sizeof fds);
    const char* texts = block.data() + sizeof request;
    open(fds, std::string(texts, request.path_bytes),
         std::string(texts + request.path_bytes, request.link_bytes), request.kind == Request::Kind::kGoOn);
  }

  void open(const std::array<int, kDescriptors>& fds, std::string path, std::string link, bool go_on) {
    Stream stream;
    stream.pipe.reset(fds[0]);
    UniqueFd file(fds[1]);
    const UniqueFd memory(fds[2]);
    auto state = join_memory<LogStreamState>(memory.get());
    if (!stream.pipe || !file || !state) {  // the worker sees a broken pipe, when the launcher has let go
      state_.refused.fetch_add(1);
      return ring();
    }
    stream.state = *std::move(state);
    stream.state->opened.store(true);
    if (go_on) {
      file = take_up(path, *stream.state);
      stream.missing_before = stream.state->missing.load();
    }
    stream.file.emplace(std::move(file), std::move(path), std::move(link), rules_,
                        [this, told = stream.state] {
                          if (told->turn.fetch_add(1) % 2 == 1) ring();
                        });
    if (go_on) stream.file->go_on(stream.state->in_hand.exchange(false) ? lost_bytes(*stream.state) : 0);
    stream.state->done.store(stream.state->taken.load());
    const int fd = stream.pipe.get();
    watch(fd);
    streams_.emplace(fd, std::move(stream));
    if (go_on) ring();  // the names of its files have settled
  }

  /// The file of a stream whose writer was killed, maybe while it renamed files. Where it cannot be opened,
  /// what its worker writes is counted as missing.
  UniqueFd take_up(const std::string& path, LogStreamState& state) const {
    const bool rotated = finish_rotation(path, rules_.keep);
    if (const std::uint64_t turn = state.turn.load(); turn % 2 == 1)
      state.turn.store(turn + (rotated ? 1 : -1));
    return UniqueFd(
        retry_eintr([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666); }));
  }

  int control_;
  LogWriterState& state_;
  Rotation rules_;
  UniqueFd epoll_;
  std::string buffer_;
  std::unordered_map<int, Stream> streams_;  // by the pipe's descriptor
  bool listening_ = true;
};

}  // namespace

std::uint64_t lost_bytes(const LogStreamState& state) {
  const std::uint64_t held = state.taken.load() - state.done.load();
  return held > 0 ? held : kReadBytes;  // it was just reading them
}

/// After fork, with all signals blocked and a heap in order.
void run(int control, LogWriterState& state, Rotation rules) {
  ::setsid();
  set_process_title("job-logs");
  if (control != kFirstDescriptor) ::dup3(control, kFirstDescriptor, O_CLOEXEC);
  // Whoever reads the launcher's own streams is not to wait for this process.
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd < kFirstDescriptor; ++fd) ::dup2(nothing, fd);
  ::syscall(SYS_close_range, kFirstDescriptor + 1U, ~0U, 0U);
  raise_descriptor_limit();
  Writer(kFirstDescriptor, state, rules).run();
  ::_exit(0);
}

}  // namespace muster::launcher::log_writer
