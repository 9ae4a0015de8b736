// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <ifaddrs.h>
#include <list>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <thread>

#include <fmt/ranges.h>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/resolve.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/tcp/tcp_group.h"
#include "worker_runtime/groups/tcp/tcp_hello.h"

namespace muster::groups {
namespace {

constexpr Millis kAttempt{3000};  // for one address

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  return ::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

/// The address this host would use to talk to `host`. Connecting a datagram socket sends nothing.
std::string address_towards(const std::string& host) {
  if (host.empty()) return "";
  const auto list = resolve(host, 9, SOCK_DGRAM);
  for (const addrinfo* a = list ? list->get() : nullptr; a != nullptr; a = a->ai_next) {
    const UniqueFd probe(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (probe && ::connect(probe.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0)
      return numeric(reinterpret_cast<sockaddr*>(&own), length);
  }
  return "";
}

struct Listener {
  UniqueFd socket;
  std::uint16_t port = 0;
};

Result<Listener> listen_anywhere() {
  for (const int family : {AF_INET6, AF_INET}) {
    Listener out;
    out.socket.reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!out.socket) continue;
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);  // any address, any port
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    const int off = 0;
    if (family == AF_INET6) ::setsockopt(out.socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (::bind(out.socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(out.socket.get(), SOMAXCONN) != 0 ||
        ::getsockname(out.socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
      continue;
    out.port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                        : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    return out;
  }
  return fail(errno_error("listen for the other ranks", errno));
}

/// How long one blocking call may take: connect() and sends, or receives.
void limit(int fd, int option, Instant deadline) {
  // 0 would be no limit.
  const std::int64_t left = std::max<std::int64_t>(time_left(deadline, SteadyClock::now()).count(), 1);
  const timeval limit{left / 1000, left % 1000 * 1000};
  ::setsockopt(fd, SOL_SOCKET, option, &limit, sizeof limit);
}

void tune(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A host that vanishes without a word is noticed after about a minute even if nothing is being sent.
  const int idle = 20, interval = 10, probes = 4;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

Result<UniqueFd> connect_to(const std::string& address, std::uint16_t port, Instant deadline) {
  const auto list = resolve(address, port, SOCK_STREAM);
  if (!list) return fail("resolve " + address, list.error());
  Error last{ErrorCode::kPeerGone, "no address"};
  for (const addrinfo* a = list->get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) return fail(errno_error("socket", errno));
    limit(fd.get(), SO_SNDTIMEO, deadline);
    if (::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0) return fd;
    // EINPROGRESS: the limit has passed.
    last = errno == EINPROGRESS ? Error{ErrorCode::kTimeout, "no answer"} : errno_error("connect", errno);
  }
  return fail(std::move(last));
}

class Connector {
 public:
  Connector(const TcpConnectOptions& options, const Nonce& nonce, Instant deadline)
      : options_(options), nonce_(nonce), deadline_(deadline), peers_(options.ranks.size()) {
    for (std::size_t i = 0; i < peers_.size(); ++i) peers_[i].rank = options.ranks[i];
  }

  Result<void> connect(std::size_t member, const Whereabouts& where) {
    const std::vector<std::string>& addresses = where.addresses;
    // The member listens already, so a refusal is a wrong address; a full backlog or a route that comes up
    // late passes.
    Backoff backoff({.first = Millis(20), .max = Millis(1000)}, static_cast<std::uint64_t>(options_.me) + 1);
    std::string last = "it told no address";
    while (true) {
      for (const std::string& address : addresses) {
        auto linked =
            try_address(member, address, where.port, std::min(deadline_, SteadyClock::now() + kAttempt));
        if (linked) {
          peers_[member].socket = *std::move(linked);
          return {};
        }
        last = address + ": " + linked.error().message;
      }
      const Millis pause = backoff.next();
      if (addresses.empty() || SteadyClock::now() + pause >= deadline_) break;
      std::this_thread::sleep_for(pause);
    }
    return fail(ErrorCode::kPeerGone,
                "cannot connect to rank {} at port {} of {}: {}; is there a firewall between the hosts, or "
                "does MUSTER_ADDRESS have to name the right interface?",
                options_.ranks[member], where.port, fmt::join(addresses, ", "), last);
  }

  /// Accepts everybody after this member.
  Result<void> accept_rest(int listener) {
    const auto me = static_cast<std::size_t>(options_.me);
    const auto all_here = [&] {
      return std::all_of(peers_.begin() + static_cast<std::ptrdiff_t>(me) + 1, peers_.end(),
                         [](const TcpMesh::Peer& peer) { return static_cast<bool>(peer.socket); });
    };
    while (!all_here()) {
      const Millis left = time_left(deadline_, SteadyClock::now());
      if (left.count() == 0) return missing();
      std::vector<pollfd> entries{{listener, POLLIN, 0}};
      for (const Caller& caller : callers_) entries.push_back({caller.socket.get(), POLLIN, 0});
      (void)::poll(entries.data(), entries.size(),
                   static_cast<int>(std::min<std::int64_t>(left.count(), 1 << 30)));
      for (auto caller = callers_.begin(); caller != callers_.end();)
        caller = listen_to(*caller) ? callers_.erase(caller) : std::next(caller);
      // As many at a time as may be members: one more takes the place of who has been silent longest, so that
      // unauthenticated peers that send nothing keep no member out.
      for (std::size_t i = 0; i < peers_.size() + kMaxUnauthenticated; ++i) {
        UniqueFd socket(
            retry_eintr([&] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
        if (!socket && (errno == EMFILE || errno == ENFILE)) return fail(errno_error("accept a rank", errno));
        if (!socket) break;
        if (callers_.size() >= peers_.size() + kMaxUnauthenticated) callers_.pop_front();
        callers_.push_back({std::move(socket), HelloReader(nonce_, static_cast<std::uint32_t>(options_.me),
                                                           static_cast<std::uint32_t>(peers_.size()))});
        if (listen_to(callers_.back())) callers_.pop_back();
      }
    }
    return {};
  }

  std::vector<TcpMesh::Peer> take() {
    for (TcpMesh::Peer& peer : peers_)
      if (peer.socket) tune(peer.socket.get());
    return std::move(peers_);
  }

 private:
  static constexpr std::size_t kMaxUnauthenticated = 64;  // connections that have not said who they are

  struct Caller {
    UniqueFd socket;
    HelloReader hello;
  };

  Result<UniqueFd> try_address(std::size_t member, const std::string& address, std::uint16_t port,
                               Instant deadline) {
    MUSTER_TRY(UniqueFd fd, connect_to(address, port, deadline));
    const auto hello =
        make_hello(nonce_, static_cast<std::uint32_t>(options_.me), static_cast<std::uint32_t>(member));
    if (::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size()))
      return fail(errno_error("talk to it", errno));
    // The member answers from its accept loop, to which it comes after its own connects: all of them go to
    // members before it, so the first member answers first and nobody waits in a circle.
    std::array<std::uint8_t, kReplyBytes> reply{};
    limit(fd.get(), SO_RCVTIMEO, deadline_);
    const ssize_t n = retry_eintr([&] { return ::recv(fd.get(), reply.data(), reply.size(), MSG_WAITALL); });
    if (n < 0 && errno != EAGAIN) return fail(errno_error("talk to it", errno));
    if (n == 0) return fail(ErrorCode::kPeerGone, "it closed the connection");
    if (n != static_cast<ssize_t>(reply.size())) return fail(ErrorCode::kTimeout, "it did not answer");
    if (!is_reply(reply, nonce_)) return fail(ErrorCode::kProtocol, "something else listens there");
    return fd;
  }

  /// True when the caller is done with: recognised and taken over, or unauthenticated.
  bool listen_to(Caller& caller) {
    std::array<std::uint8_t, kHelloBytes> bytes;
    const ssize_t n = retry_eintr(
        [&] { return ::recv(caller.socket.get(), bytes.data(), caller.hello.num_missing(), MSG_DONTWAIT); });
    if (n < 0) return errno != EAGAIN && errno != EWOULDBLOCK;
    if (n == 0) return true;
    const HelloReader::State state = caller.hello.receive(bytes.data(), static_cast<std::size_t>(n));
    if (state != HelloReader::State::kMember) return state == HelloReader::State::kUnauthenticated;
    TcpMesh::Peer& peer = peers_[caller.hello.member()];
    if (peer.socket) return true;
    const auto reply = make_reply(nonce_);
    // A new connection has room for it.
    if (::send(caller.socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
        static_cast<ssize_t>(reply.size()))
      peer.socket = std::move(caller.socket);
    return true;
  }

  Result<void> missing() const {
    std::vector<int> ranks;
    for (std::size_t i = static_cast<std::size_t>(options_.me) + 1; i < peers_.size(); ++i)
      if (!peers_[i].socket) ranks.push_back(peers_[i].rank);
    return fail(ErrorCode::kTimeout,
                "{} did not connect to rank {} within {} ms; can they reach this host? MUSTER_ADDRESS names "
                "the address to use",
                rank_list(ranks), options_.ranks[static_cast<std::size_t>(options_.me)],
                options_.timeout.count());
  }

  const TcpConnectOptions& options_;
  const Nonce& nonce_;
  const Instant deadline_;
  std::vector<TcpMesh::Peer> peers_;
  std::list<Caller> callers_;
};

}  // namespace

std::vector<std::string> own_addresses(const std::string& route_host, std::string_view interface) {
  const std::string wanted(interface.substr(0, interface.find(',')));
  std::vector<std::string> chosen, others, loopback;
  const std::string route = address_towards(route_host);
  // A host's own name often leads to 127.0.1.1, which says nothing about how others reach it: last.
  const bool local_route = route.starts_with("127.") || route == "::1";
  if (!local_route) others.push_back(route);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
      const int family = i->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      if (family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr))
        continue;
      auto& found = !wanted.empty() && wanted == i->ifa_name ? chosen
                    : (i->ifa_flags & IFF_LOOPBACK) != 0     ? loopback
                                                             : others;
      found.push_back(numeric(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
    }
    ::freeifaddrs(list);
  }
  // With a loopback route everything is on this host, where loopback is the shortest way; not where an
  // interface is named: then the route ends at a proxy.
  if (local_route && chosen.empty()) others.swap(loopback);
  std::vector<std::string> out;
  for (const auto* const addresses : {&chosen, &others, &loopback})
    for (const std::string& address : *addresses)
      if (!address.empty() && std::find(out.begin(), out.end(), address) == out.end()) out.push_back(address);
  return out;
}

Result<std::vector<TcpMesh::Peer>> connect_members(const TcpConnectOptions& options,
                                                   const TextExchange& exchange) {
  const Instant deadline = SteadyClock::now() + options.timeout;
  MUSTER_TRY(const Listener listener, listen_anywhere());
  Whereabouts own;
  if (::getrandom(own.nonce.data(), own.nonce.size(), 0) != static_cast<ssize_t>(own.nonce.size()))
    return fail(errno_error("getrandom", errno));
  own.port = listener.port;
  own.addresses = options.address.empty() ? own_addresses(options.route_host, options.interface)
                                          : std::vector{options.address};
  MUSTER_TRY(const auto texts, exchange(write_whereabouts(own)));
  MUSTER_TRY(const Whereabouts first, read_whereabouts(texts.front()));
  Connector connector(options, first.nonce, deadline);
  for (std::size_t i = 0; i < static_cast<std::size_t>(options.me); ++i) {
    MUSTER_TRY(const Whereabouts where, read_whereabouts(texts[i]));
    MUSTER_OK(connector.connect(i, where));
  }
  MUSTER_OK(connector.accept_rest(listener.socket.get()));
  return connector.take();
}

}  // namespace muster::groups
