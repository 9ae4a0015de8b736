// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/listener.h"

#include <cerrno>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/resolve.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/net/endpoint.h"

namespace muster::net {
namespace {

using boost::asio::ip::tcp;

constexpr int kPortTries = 16;

// `numeric`: of the address; empty: every one.
Error listen_error(const std::string& address, const std::string& numeric, std::uint16_t port,
                   int error_number, bool name_owner = true) {
  Error error = errno_error("listen on " + address, error_number);
  std::string advice;
  if (error_number == EADDRINUSE) {
    if (name_owner) advice = busy_port_advice(numeric, port);
  } else if (error_number == EACCES) {
    advice = "; ports below 1024 need root or CAP_NET_BIND_SERVICE";
  } else if (error_number == EADDRNOTAVAIL) {
    advice = "; it is no address of this host";
  }
  // The first words are what PyTorch's own server says, and its users and tests look for.
  error.message =
      fmt::format("The server socket has failed to listen on any local network address. {}, port: {}{}",
                  error.message, port, advice);
  return error;
}

Result<void> add(Listener& to, UniqueFd fd) {
  const auto bound = endpoint_of(fd.get(), ::getsockname);
  if (!bound) return invalid("descriptor {} is no TCP socket to listen with", fd.get());
  to.port = bound->port();
  to.address += fmt::format("{}{}", to.fds.empty() ? "" : " ", endpoint_text(*bound));
  to.loopback_only = to.loopback_only && bound->address().is_loopback();
  to.fds.push_back(std::move(fd));
  return {};
}

Result<Listener> finish(UniqueFd fd) {
  Listener out;
  MUSTER_OK(add(out, std::move(fd)));
  return out;
}

// 0, or the number of the call's error.
int bind_and_listen(const sockaddr* address, socklen_t size, UniqueFd& out) {
  UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) return errno;
  const int on = 1;
  const int off = 0;
  // REUSEADDR lets a restarted server take its port back from connections in TIME_WAIT; it does not share the
  // port.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address->sa_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), address, size) != 0) return errno;
  // The kernel cuts the backlog to net.core.somaxconn.
  if (::listen(fd.get(), INT32_MAX) != 0) return errno;
  out = std::move(fd);
  return 0;
}

}  // namespace

Result<Listener> open_listener(const std::string& host, std::uint16_t port, bool name_owner) {
  UniqueFd fd;
  if (host.empty()) {
    const tcp::endpoint v6(tcp::v6(), port);
    if (bind_and_listen(v6.data(), static_cast<socklen_t>(v6.size()), fd) == 0) return finish(std::move(fd));
    const tcp::endpoint v4(tcp::v4(), port);
    if (const int error = bind_and_listen(v4.data(), static_cast<socklen_t>(v4.size()), fd); error != 0)
      return fail(listen_error(fmt::format("[::]:{0} and 0.0.0.0:{0}", port), {}, port, error, name_owner));
    return finish(std::move(fd));
  }

  const auto found = resolve(host, port, SOCK_STREAM, AI_PASSIVE);
  if (!found)
    return invalid(
        "The server socket has failed to listen on any local network address. host {}, port: {}: {}; give an "
        "address or name of this host, or none to listen on every address",
        host, port, found.error().message);
  int error = EADDRNOTAVAIL;
  std::string numeric;
  for (const addrinfo* at = found->get(); at != nullptr; at = at->ai_next) {
    error = bind_and_listen(at->ai_addr, at->ai_addrlen, fd);
    if (error == 0) return finish(std::move(fd));
    char text[NI_MAXHOST] = "";
    (void)::getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    numeric = text;
    // Somebody serves this name already: half of it would divide its clients.
    if (error == EADDRINUSE) break;
  }
  return fail(listen_error(fmt::format("{}:{}", host, port), numeric, port, error, name_owner));
}

Result<Listener> open_listeners(const std::vector<std::string>& addresses, std::uint16_t port,
                                bool name_owner) {
  // A port of the kernel's choice may be somebody's at another of the addresses.
  for (int tries = 1;; ++tries) {
    Listener out;
    Error error{ErrorCode::kInvalidArgument, "no address to listen on"};
    bool again = false;
    for (const std::string& address : addresses) {
      auto one = open_listener(address, out.fds.empty() ? port : out.port, name_owner);
      if (one) {
        MUSTER_OK(add(out, std::move(one->fds.front())));
        continue;
      }
      error = one.error();
      if (error.code != ErrorCode::kExhausted) continue;
      again = port == 0 && tries < kPortTries;
      if (!again) return fail(std::move(error));
      break;
    }
    if (again) continue;
    if (out.fds.empty()) return fail(std::move(error));
    return out;
  }
}

Result<Listener> adopt_listener(UniqueFd fd, std::uint16_t port) {
  int type = 0;
  socklen_t size = sizeof type;
  const int raw = fd.get();
  if (::getsockopt(raw, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
    return fail(errno_error(fmt::format("inherited listening descriptor {}", raw), errno));
  if (type != SOCK_STREAM) return invalid("inherited descriptor {} is no stream socket", raw);
  if (::fcntl(raw, F_SETFD, FD_CLOEXEC) != 0 ||
      ::fcntl(raw, F_SETFL, ::fcntl(raw, F_GETFL) | O_NONBLOCK) != 0)
    return fail(errno_error(fmt::format("inherited listening descriptor {}", raw), errno));
  MUSTER_TRY(Listener listener, finish(std::move(fd)));
  if (port != 0 && listener.port != port)
    return invalid("inherited descriptor {} is bound to port {}, not to the port {} asked for", raw,
                   listener.port, port);
  if (::listen(raw, INT32_MAX) != 0) return fail(listen_error(listener.address, {}, listener.port, errno));
  // An unbound socket gets its port from listen().
  return finish(std::move(listener.fds.front()));
}

std::string peer_name(int fd) {
  const auto peer = endpoint_of(fd, ::getpeername);
  return peer ? endpoint_text(*peer) : "unknown peer";
}

}  // namespace muster::net
