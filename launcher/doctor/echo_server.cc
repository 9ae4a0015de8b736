// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/echo_server.h"

#include <cerrno>
#include <fcntl.h>
#include <map>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "rendezvous/base/syscall.h"
#include "rendezvous/protocol/clock_offset.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxClients = 4096;

struct Client {
  UniqueFd fd;
  std::string out;
  std::size_t big_left = 0;  // of a big message
};

// What the client sent; false: it breaks the rules.
bool take(Client& client, std::string_view bytes) {
  while (!bytes.empty()) {
    if (client.big_left > 0) {
      const std::size_t taken = std::min(client.big_left, bytes.size());
      bytes.remove_prefix(taken);
      client.big_left -= taken;
      if (client.big_left == 0) client.out.append(kBigBytes, kBig);
      continue;
    }
    const char word = bytes.front();
    bytes.remove_prefix(1);
    if (word == kBig) {
      client.big_left = kBigBytes - 1;
    } else if (word == kPing) {
      client.out += kPing;
      auto now = static_cast<std::uint64_t>(wall_nanoseconds());
      for (std::size_t i = 1; i < kPongBytes; ++i, now >>= 8) client.out += static_cast<char>(now & 0xff);
    } else {
      return false;
    }
    if (client.out.size() > 4 * kBigBytes) return false;  // it does not read
  }
  return true;
}

// False: it is gone.
bool serve(Client& client, short events) {
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    char block[16384];
    const ssize_t n = retry_eintr([&] { return ::recv(client.fd.get(), block, sizeof block, MSG_DONTWAIT); });
    if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
    if (n > 0 && !take(client, {block, static_cast<std::size_t>(n)})) return false;
  }
  if (client.out.empty()) return true;
  const ssize_t n = retry_eintr([&] {
    return ::send(client.fd.get(), client.out.data(), client.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  });
  if (n < 0) return errno == EAGAIN;
  client.out.erase(0, static_cast<std::size_t>(n));
  return true;
}

void run(const UniqueFd& listener, const UniqueFd& stop, const std::string& token) {
  std::map<int, Client> clients;
  std::vector<pollfd> entries;
  while (true) {
    entries = {{stop.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
    for (const auto& [fd, client] : clients)
      entries.push_back({fd, static_cast<short>(client.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (retry_eintr([&] { return ::poll(entries.data(), entries.size(), -1); }) < 0) return;
    if (entries[0].revents != 0) return;
    if (entries[1].revents != 0) {
      UniqueFd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (fd && clients.size() < kMaxClients) {
        const int one = 1;
        ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        const int number = fd.get();
        Client& client = clients[number];
        client = {std::move(fd), token, 0};
        if (!serve(client, 0)) clients.erase(number);
      }
    }
    for (std::size_t i = 2; i < entries.size(); ++i)
      if (entries[i].revents != 0)
        if (const auto found = clients.find(entries[i].fd);
            found != clients.end() && !serve(found->second, entries[i].revents))
          clients.erase(found);
  }
}

// Of both families where the kernel has IPv6.
Result<UniqueFd> listen_anywhere() {
  UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd) {
    const int off = 0;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) fd.reset();
  }
  if (!fd) {
    fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0)
      return fail(errno_error("a port for the other nodes", errno));
  }
  if (::listen(fd.get(), SOMAXCONN) != 0) return fail(errno_error("listen", errno));
  return fd;
}

}  // namespace

Result<EchoServer> EchoServer::open(std::string token) {
  MUSTER_TRY(UniqueFd listener, listen_anywhere());
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return fail(errno_error("getsockname", errno));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(errno_error("pipe2", errno));
  EchoServer out;
  // The same place for both families.
  out.port_ = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  out.stop_.reset(ends[1]);
  out.thread_ = std::thread([listener = std::move(listener), stop = UniqueFd(ends[0]),
                             token = std::move(token)] { run(listener, stop, token); });
  return out;
}

EchoServer::~EchoServer() {
  stop_.reset();
  if (thread_.joinable()) thread_.join();
}

}  // namespace muster::launcher
