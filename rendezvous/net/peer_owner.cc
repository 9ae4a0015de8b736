// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/peer_owner.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::net {
namespace {

/// One end of a connection. An IPv4 address mapped into IPv6 is an IPv4 address: sockets of both families
/// meet there.
struct End {
  std::uint8_t family = AF_INET;
  in6_addr address{};  // IPv4: the first four bytes
  in_port_t port = 0;  // network order
  [[nodiscard]] bool same_address(const End& other) const {
    return family == other.family && std::memcmp(&address, &other.address, sizeof address) == 0;
  }
  [[nodiscard]] bool is_loopback() const {
    return family == AF_INET ? address.s6_addr[0] == IN_LOOPBACKNET : IN6_IS_ADDR_LOOPBACK(&address);
  }
};

std::optional<End> end_of(int fd, decltype(::getpeername)& get_name) {
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  if (get_name(fd, reinterpret_cast<sockaddr*>(&from), &size) != 0) return std::nullopt;
  End out;
  if (from.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &from, sizeof v4);
    std::memcpy(&out.address, &v4.sin_addr, sizeof v4.sin_addr);
    out.port = v4.sin_port;
    return out;
  }
  if (from.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &from, sizeof v6);
  out.port = v6.sin6_port;
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    std::memcpy(&out.address, v6.sin6_addr.s6_addr + 12, 4);
  } else {
    out.family = AF_INET6;
    out.address = v6.sin6_addr;
  }
  return out;
}

inet_diag_sockid id_of(const End& own, const End& other) {
  inet_diag_sockid out{};
  out.idiag_sport = own.port;
  out.idiag_dport = other.port;
  std::memcpy(out.idiag_src, &own.address, sizeof own.address);
  std::memcpy(out.idiag_dst, &other.address, sizeof other.address);
  out.idiag_cookie[0] = out.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return out;
}

/// What the kernel knows of the one socket between these ends.
Result<inet_diag_msg> look_up(const End& own, const End& other) {
  const UniqueFd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink) return fail(errno_error("socket(NETLINK_SOCK_DIAG)", errno));
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = own.family;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  request.body.id = id_of(own, other);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (retry_eintr([&] {
        return ::sendto(netlink.get(), &request, sizeof request, 0,
                        reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel);
      }) < 0)
    return fail(errno_error("sock_diag request", errno));
  // The kernel answers within sendto().
  alignas(nlmsghdr) char answer[4096];
  const ssize_t size =
      retry_eintr([&] { return ::recv(netlink.get(), answer, sizeof answer, MSG_DONTWAIT); });
  if (size < 0) return fail(errno_error("sock_diag answer", errno));
  const auto fits = [size](std::size_t bytes) { return static_cast<std::size_t>(size) >= bytes; };
  nlmsghdr header{};
  if (fits(sizeof header)) std::memcpy(&header, answer, sizeof header);
  if (header.nlmsg_type == NLMSG_ERROR && fits(NLMSG_HDRLEN + sizeof(nlmsgerr))) {
    nlmsgerr error{};
    std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof error);
    return fail(errno_error("sock_diag", -error.error));
  }
  inet_diag_msg out{};
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || !fits(NLMSG_HDRLEN + sizeof out))
    return fail(ErrorCode::kIo, "sock_diag gave no answer");
  std::memcpy(&out, answer + NLMSG_HDRLEN, sizeof out);
  return out;
}

bool is_established(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_ESTABLISHED;
}

}  // namespace

bool peer_is_on_this_host(int fd) {
  const auto peer = end_of(fd, ::getpeername);
  const auto own = end_of(fd, ::getsockname);
  return peer && own && (peer->is_loopback() || peer->same_address(*own));
}

Result<uid_t> peer_user(int fd) {
  const auto peer = end_of(fd, ::getpeername);
  const auto own = end_of(fd, ::getsockname);
  if (!peer || !own) return fail(ErrorCode::kNotFound, "the connection has ended");
  MUSTER_TRY(const inet_diag_msg found, look_up(*peer, *own));
  // Without an exact match the kernel looks for who listens at the peer's address. A socket that was closed
  // shows no inode, and root as its owner.
  if (found.idiag_state != TCP_ESTABLISHED || found.idiag_inode == 0 || found.id.idiag_sport != peer->port ||
      found.id.idiag_dport != own->port)
    return fail(ErrorCode::kNotFound, "no process of this host holds its other end");
  // The socket that was found is this connection's only if that has not ended meanwhile: its ports may be
  // another's by then.
  if (!is_established(fd)) return fail(ErrorCode::kNotFound, "the connection has ended");
  return found.idiag_uid;
}

std::string untrusted_user(int fd, const std::vector<uid_t>& allowed) {
  const auto user = peer_user(fd);
  if (!user) return fmt::format("whose it is cannot be told: {}", user.error().message);
  if (*user == 0 || *user == ::geteuid() || std::find(allowed.begin(), allowed.end(), *user) != allowed.end())
    return {};
  return fmt::format("it belongs to user {}", *user);
}

}  // namespace muster::net
