// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/tcp_stream.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <vector>

#include <climits>

#include "rendezvous/base/syscall.h"

namespace muster {
namespace {

// One address of several must not use up the time of the others: a host that drops packets answers nothing at
// all.
constexpr Millis kConnectSlice{5000};

std::string numeric_name(const addrinfo& address) {
  char host[NI_MAXHOST] = "?";
  char service[NI_MAXSERV] = "?";
  ::getnameinfo(address.ai_addr, address.ai_addrlen, host, sizeof host, service, sizeof service,
                NI_NUMERICHOST | NI_NUMERICSERV);
  const std::string text = address.ai_family == AF_INET6 ? "[" + std::string(host) + "]" : host;
  return text + ":" + service;
}

// poll(2) for one descriptor until the deadline; false: it passed.
Result<bool> wait_for(int fd, short events, Instant deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const Millis left = time_left(deadline, SteadyClock::now());
    const int n = ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return fail(errno_error("poll", errno));
    if (n == 0 && left.count() <= INT_MAX) return false;
  }
}

Result<UniqueFd> connect_one(const addrinfo& address, Instant deadline) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) return fail(errno_error("socket", errno));
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS && errno != EINTR) return fail(errno_error(numeric_name(address), errno));
  MUSTER_TRY(const bool ready, wait_for(fd.get(), POLLOUT, deadline));
  if (!ready) return fail(ErrorCode::kTimeout, numeric_name(address) + ": no answer");
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail(errno_error(numeric_name(address), error));
  return fd;
}

}  // namespace

Result<TcpStream> TcpStream::connect(const std::string& host, std::uint16_t port, Instant deadline) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return fail(ErrorCode::kNotFound, "name resolution: " + std::string(::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<const addrinfo*> candidates;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) candidates.push_back(at);
  std::stable_partition(candidates.begin(), candidates.end(),
                        [](const addrinfo* at) { return at->ai_family == AF_INET6; });

  std::optional<Error> failure;
  for (const addrinfo* candidate : candidates) {
    auto fd = connect_one(*candidate, std::min(deadline, SteadyClock::now() + kConnectSlice));
    if (fd) return TcpStream(*std::move(fd), numeric_name(*candidate));
    if (failure)
      failure->message += ", " + fd.error().message;
    else
      failure = std::move(fd).error();
  }
  return fail(failure.value_or(Error{ErrorCode::kNotFound, "name resolution: no address"}));
}

Result<void> TcpStream::send(std::string_view bytes, Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail(errno_error("send", errno));
    MUSTER_TRY(const bool ready, wait_for(fd_.get(), POLLOUT, deadline));
    if (!ready) return fail(ErrorCode::kTimeout, "the server takes no more bytes");
  }
  return {};
}

Result<void> TcpStream::receive(char* out, std::size_t size, Instant deadline) {
  while (size > 0) {
    if (begin_ < end_) {
      const std::size_t take = std::min(size, end_ - begin_);
      std::memcpy(out, buffer_.data() + begin_, take);
      begin_ += take;
      out += take;
      size -= take;
      continue;
    }
    const bool direct = size >= buffer_.size();
    const ssize_t n =
        direct ? ::recv(fd_.get(), out, size, 0) : ::recv(fd_.get(), buffer_.data(), buffer_.size(), 0);
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
    MUSTER_TRY(const bool ready, wait_for(fd_.get(), POLLIN, deadline));
    if (!ready) return fail(ErrorCode::kTimeout, "no answer from the server");
  }
  return {};
}

Result<bool> TcpStream::readable(Instant deadline) {
  if (begin_ < end_) return true;
  return wait_for(fd_.get(), POLLIN, deadline);
}

}  // namespace muster
