// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/store_link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/resolve.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"

namespace muster {
namespace {

using wire::Op;

// A server that accepts but does not answer the handshake is given this long, then tried again.
constexpr Millis kHandshakeTime{10000};
// A reply is taken to be nonsense beyond this; memory is still only taken as the bytes come.
constexpr std::int64_t kMaxReplyBytes = std::int64_t{1} << 32;
constexpr std::size_t kReadStep = std::size_t{1} << 20;
constexpr std::size_t kListedKeys = 8;

std::string describe(const wire::Request& request) {
  std::string text(op_info(request.op).name);
  if (request.op == Op::kMultiSet)
    text += fmt::format(" of {} keys, the first {}", request.items.size() / 2,
                        request.items.empty() ? "-" : printable(request.items[0]));
  else if (!request.items.empty())
    text += fmt::format(" {}", list_keys_text(request.items));
  else if (!request.key.empty())
    text += fmt::format(" {}", printable(request.key));
  return text;
}

void sleep_until(Instant deadline) {
  // poll() of nothing: a wait that a caller's signal handler can end early without harm.
  const Millis left = time_left(deadline, SteadyClock::now());
  ::poll(nullptr, 0, static_cast<int>(left.count()));
}

std::string seconds_text(Millis time) {
  return fmt::format("{:.3g} s", static_cast<double>(time.count()) / 1000);
}

// One address of several must not use up the time of the others: a host that drops packets answers nothing at
// all.
constexpr Millis kConnectSlice{5000};

std::string numeric_name(const addrinfo& address) {
  char host[NI_MAXHOST] = "?";
  char service[NI_MAXSERV] = "?";
  ::getnameinfo(address.ai_addr, address.ai_addrlen, host, sizeof host, service, sizeof service,
                NI_NUMERICHOST | NI_NUMERICSERV);
  return address.ai_family == AF_INET6 ? fmt::format("[{}]:{}", host, service)
                                       : fmt::format("{}:{}", host, service);
}

Result<UniqueFd> connect_one(const addrinfo& address, Instant deadline) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) return fail(errno_error("socket", errno));
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS && errno != EINTR) return fail(errno_error(numeric_name(address), errno));
  if (!wait_until_ready(fd.get(), POLLOUT, deadline))
    return fail(ErrorCode::kTimeout, numeric_name(address) + ": no answer");
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail(errno_error(numeric_name(address), error));
  return fd;
}

// Every address of the host once, IPv6 before IPv4 as PyTorch's client does.
Result<UniqueFd> connect_to(const std::string& host, std::uint16_t port, Instant deadline) {
  const auto found = resolve(host, port, SOCK_STREAM);
  if (!found) return fail(ErrorCode::kNotFound, "name resolution: {}", found.error().message);
  std::optional<Error> failure;
  for (const bool v6 : {true, false}) {
    for (const addrinfo* at = found->get(); at != nullptr; at = at->ai_next) {
      if ((at->ai_family == AF_INET6) != v6) continue;
      auto fd = connect_one(*at, std::min(deadline, SteadyClock::now() + kConnectSlice));
      if (fd) return fd;
      if (failure)
        failure->message += ", " + fd.error().message;
      else
        failure = std::move(fd).error();
    }
  }
  return fail(failure.value_or(Error{ErrorCode::kNotFound, "name resolution: no address"}));
}

Result<void> send_all(int fd, std::string_view bytes, Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(errno_error("send", errno));
    if (!wait_until_ready(fd, POLLOUT, deadline))
      return fail(ErrorCode::kTimeout, "the server takes no more bytes");
  }
  return {};
}

}  // namespace

Result<void> StoreLink::receive(char* out, std::size_t size, Instant deadline) {
  while (size > 0) {
    if (begin_ < end_) {
      const std::size_t take = std::min(size, end_ - begin_);
      std::memcpy(out, received_.data() + begin_, take);
      begin_ += take;
      out += take;
      size -= take;
      continue;
    }
    const bool direct = size >= received_.size();
    const ssize_t n =
        direct ? ::recv(fd_.get(), out, size, 0) : ::recv(fd_.get(), received_.data(), received_.size(), 0);
    if (n == 0) return fail(ErrorCode::kPeerGone, "the server closed the connection");
    if (n > 0) {
      if (direct) {
        out += n;
        size -= static_cast<std::size_t>(n);
      } else {
        begin_ = 0;
        end_ = static_cast<std::size_t>(n);
      }
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(errno_error("recv", errno));
    if (!wait_until_ready(fd_.get(), POLLIN, deadline))
      return fail(ErrorCode::kTimeout, "no answer from the server");
  }
  return {};
}

std::string list_keys_text(std::span<const std::string_view> keys) {
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kListedKeys); ++i) {
    if (i > 0) text += ", ";
    text += printable(keys[i]);
  }
  if (keys.size() > kListedKeys) text += fmt::format(" and {} more", keys.size() - kListedKeys);
  return text;
}

Result<StoreLink> StoreLink::open(const std::string& host, std::uint16_t port, Millis timeout) {
  const Instant start = SteadyClock::now();
  const Instant deadline = after(timeout);
  const std::string endpoint = endpoint_text(host, port);
  Backoff backoff({}, static_cast<std::uint64_t>(start.time_since_epoch().count()) ^
                          (static_cast<std::uint64_t>(::getpid()) << 32));
  bool ping = true;
  for (int attempt = 1;; ++attempt) {
    Error error;
    auto fd = connect_to(host, port, deadline);
    if (fd) {
      StoreLink link(*std::move(fd), endpoint);
      const auto shaken = link.greet(ping, std::min(deadline, SteadyClock::now() + kHandshakeTime));
      if (shaken) return link;
      error = shaken.error();
      // A server that does not know a greeting closes the connection.
      if (error.code == ErrorCode::kPeerGone) ping = !ping;
      if (error.code != ErrorCode::kProtocol) error.message += " (is it a server of PyTorch before 2.2?)";
    } else {
      error = std::move(fd).error();
    }
    const Instant now = SteadyClock::now();
    const Instant again = now + backoff.next();
    // Something else than a TCPStore server listens there: it will not become one.
    if (again >= deadline || error.code == ErrorCode::kProtocol) {
      return fail(
          error.code == ErrorCode::kPeerGone ? ErrorCode::kTimeout : error.code,
          fmt::format("connect to the store at {} failed for {} ({} attempts), the last: {}; is the process "
                      "that hosts the store running, and its port reachable from here?",
                      endpoint, seconds_text(std::chrono::duration_cast<Millis>(now - start)), attempt,
                      error.message));
    }
    sleep_until(again);
  }
}

Result<void> StoreLink::greet(bool ping, Instant deadline) {
  // VALIDATE and what follows in a segment each: PyTorch's libuv server loses a VALIDATE that does not arrive
  // whole. Servers up to 2.1 take it for a SET and the four bytes behind it for the upper half of a key's
  // length, for which they allocate: those bytes must make a length that no machine has.
  MUSTER_OK(request({.op = Op::kValidate, .number = wire::kMagic}, deadline));
  if (ping) {
    const auto nonce = static_cast<std::uint32_t>(::getpid()) | 0x00800000U;  // 2^63 bytes and more
    MUSTER_OK(request({.op = Op::kPing, .number = nonce}, deadline));
    MUSTER_TRY(const std::uint32_t echo, read_number<std::uint32_t>(deadline));
    if (echo != nonce)
      return fail(
          broken({ErrorCode::kProtocol,
                  fmt::format("the answer is {} instead of {}; is it a TCPStore server?", echo, nonce)}));
    return {};
  }
  // 5 * 10^17 bytes; with a CHECK it would be 22 GB.
  for (int i = 0; i < 4; ++i) MUSTER_OK(request({.op = Op::kGetNumKeys}, deadline));
  for (int i = 0; i < 4; ++i) MUSTER_OK(read_number<std::int64_t>(deadline));
  return {};
}

Error StoreLink::broken(Error cause) {
  if (!failure_) {
    fd_.reset();  // the server forgets what this client waits for, and has its place free for the next
    failure_ = Error{cause.code, fmt::format("{} at the store {}: {}", doing_, endpoint_, cause.message)};
  }
  return *failure_;
}

Result<void> StoreLink::request(const wire::Request& request, Instant deadline) {
  if (failure_) return fail(*failure_);
  doing_ = describe(request);
  request_.clear();
  wire::encode(request, request_);
  if (auto sent = send_all(fd_.get(), request_, deadline); !sent)
    return fail(broken(std::move(sent).error()));
  if (request_.capacity() > kReadStep) request_ = std::string();
  return {};
}

Result<void> StoreLink::read(void* out, std::size_t size, Instant deadline) {
  if (failure_) return fail(*failure_);
  if (auto got = receive(static_cast<char*>(out), size, deadline); !got)
    return fail(broken(std::move(got).error()));
  return {};
}

Result<std::string> StoreLink::read_bytes(Instant deadline) {
  MUSTER_TRY(const std::int64_t size, read_number<std::int64_t>(deadline));
  if (size < 0 || size > kMaxReplyBytes)
    return fail(broken({ErrorCode::kProtocol, fmt::format("the answer announces {} bytes", size)}));
  std::string out;
  while (out.size() < static_cast<std::size_t>(size)) {
    const std::size_t at = out.size();
    const std::size_t step = std::min(kReadStep, static_cast<std::size_t>(size) - at);
    out.resize(at + step);
    MUSTER_OK(read(out.data() + at, step, deadline));
  }
  return out;
}

Result<bool> StoreLink::await_stop(Instant wait_until, Millis margin) {
  if (failure_) return fail(*failure_);
  const bool ready = begin_ < end_ || wait_until_ready(fd_.get(), POLLIN, wait_until);
  const Instant deadline = SteadyClock::now() + margin;
  if (ready) {
    MUSTER_TRY(const std::uint8_t answer, read_number<std::uint8_t>(deadline));
    if (answer == wire::kStopWaiting) return true;
    return fail(broken({ErrorCode::kProtocol, fmt::format("the answer is {} instead of 0", answer)}));
  }
  const std::string waited_for = doing_;
  MUSTER_OK(request({.op = Op::kCancelWait}, deadline));
  doing_ = waited_for + ", cancelled";
  MUSTER_TRY(std::uint8_t answer, read_number<std::uint8_t>(deadline));
  // The wake-up crossed the cancel: the server answers both.
  if (answer == wire::kStopWaiting) {
    MUSTER_TRY(answer, read_number<std::uint8_t>(deadline));
  }
  if (answer != wire::kWaitCanceled)
    return fail(
        broken({ErrorCode::kProtocol, fmt::format("the answer to CANCEL_WAIT is {} instead of 1", answer)}));
  return false;
}

}  // namespace muster
