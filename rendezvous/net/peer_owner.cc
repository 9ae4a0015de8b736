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
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/net/endpoint.h"

namespace muster::net {
namespace {

using boost::asio::ip::tcp;

void put_address(const boost::asio::ip::address& address, __be32 (&out)[4]) {
  const auto put = [&](const auto& bytes) { std::memcpy(out, bytes.data(), bytes.size()); };
  if (address.is_v4())
    put(address.to_v4().to_bytes());
  else
    put(address.to_v6().to_bytes());
}

/// What the kernel knows of the one socket between these ends.
Result<inet_diag_msg> look_up(const tcp::endpoint& own, const tcp::endpoint& other) {
  const UniqueFd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink) return fail(errno_error("socket(NETLINK_SOCK_DIAG)", errno));
  struct {
    nlmsghdr header;
    inet_diag_req_v2 body;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = static_cast<__u8>(own.protocol().family());
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  inet_diag_sockid& id = request.body.id;
  id.idiag_sport = htons(own.port());
  id.idiag_dport = htons(other.port());
  put_address(own.address(), id.idiag_src);
  put_address(other.address(), id.idiag_dst);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
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

/// kNotFound: no socket of this host is the other end, or it is not established any more, or nobody holds it;
/// its owner would be a guess.
Result<uid_t> peer_user(int fd) {
  const auto peer = endpoint_of(fd, ::getpeername);
  const auto own = endpoint_of(fd, ::getsockname);
  if (!peer || !own) return fail(ErrorCode::kNotFound, "the connection has ended");
  MUSTER_TRY(const inet_diag_msg found, look_up(*peer, *own));
  // Without an exact match the kernel looks for who listens at the peer's address. A socket that was closed
  // shows no inode, and root as its owner.
  if (found.idiag_state != TCP_ESTABLISHED || found.idiag_inode == 0 ||
      found.id.idiag_sport != htons(peer->port()) || found.id.idiag_dport != htons(own->port()))
    return fail(ErrorCode::kNotFound, "no process of this host holds its other end");
  // The socket that was found is this connection's only if that has not ended meanwhile: its ports may be
  // another's by then.
  if (!is_established(fd)) return fail(ErrorCode::kNotFound, "the connection has ended");
  return found.idiag_uid;
}

}  // namespace

bool peer_is_on_this_host(int fd) {
  const auto peer = endpoint_of(fd, ::getpeername);
  const auto own = endpoint_of(fd, ::getsockname);
  return peer && own && (peer->address().is_loopback() || peer->address() == own->address());
}

std::string untrusted_user(int fd, const std::vector<uid_t>& allowed) {
  const auto user = peer_user(fd);
  if (!user) return fmt::format("its owner cannot be determined: {}", user.error().message);
  if (*user == 0 || *user == ::geteuid() || std::ranges::find(allowed, *user) != allowed.end()) return {};
  return fmt::format("it belongs to user {}", *user);
}

}  // namespace muster::net
