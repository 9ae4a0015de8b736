// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/load_socket.h"

#include <arpa/inet.h>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::bench {
namespace {

constexpr int kTimeoutMs = 60'000;

void wait_for(int fd, short events, std::string_view what) {
  pollfd entry{fd, events, 0};
  if (retry_eintr([&] { return ::poll(&entry, 1, kTimeoutMs); }) != 1)
    give_up(fmt::format("nothing for {} s: {}", kTimeoutMs / 1000, what));
}

}  // namespace

void give_up(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

UniqueFd start_connect(const Target& target, std::size_t index) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) give_up(errno_error(fmt::format("socket {}", index), errno).message);
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (::inet_pton(AF_INET, target.host.c_str(), &address.sin_addr) != 1)
    give_up(fmt::format("{} is no IPv4 address", target.host));
  const bool loopback = ntohl(address.sin_addr.s_addr) >> 24 == 127;
  const std::size_t host = index / target.connections_per_source;
  if (loopback && (host > 0 || target.source_group > 0)) {
    // The port is chosen by connect(), which may use one again for another pair of addresses.
    ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    sockaddr_in source{};
    source.sin_family = AF_INET;
    source.sin_addr.s_addr = htonl(0x7f000000U | (target.source_group & 255U) << 8 |
                                   static_cast<std::uint32_t>((host + 1) & 255U));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&source), sizeof source) != 0)
      give_up(errno_error("bind to a 127.x address", errno).message);
  }
  address.sin_port = htons(target.port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS)
    give_up(errno_error(fmt::format("connect {} to {}:{}", index, target.host, target.port), errno).message);
  return fd;
}

UniqueFd connect_now(const Target& target, std::size_t index) {
  UniqueFd fd = start_connect(target, index);
  wait_for(fd.get(), POLLOUT, "connecting");
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0)
    give_up(errno_error(fmt::format("connect to {}:{}", target.host, target.port), error).message);
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  const ssize_t n = retry_eintr([&] { return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  if (n != static_cast<ssize_t>(bytes.size()))
    give_up(n < 0 ? errno_error("send", errno).message : "the server does not read");
}

std::string receive_some(int fd) {
  wait_for(fd, POLLIN, "an answer");
  std::string out(65536, '\0');
  const ssize_t n = retry_eintr([&] { return ::recv(fd, out.data(), out.size(), 0); });
  if (n <= 0) give_up(n == 0 ? "the server closed the connection" : errno_error("recv", errno).message);
  out.resize(static_cast<std::size_t>(n));
  return out;
}

Poller::Poller() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {}

void Poller::add(int fd, std::uint32_t events, std::uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    give_up(errno_error("epoll_ctl", errno).message);
}

void Poller::change(int fd, std::uint32_t events, std::uint64_t number) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = number;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
    give_up(errno_error("epoll_ctl", errno).message);
}

std::size_t Poller::wait(int timeout_ms, std::string_view what_for) {
  const int n = retry_eintr(
      [&] { return ::epoll_wait(fd_.get(), events_.data(), static_cast<int>(events_.size()), timeout_ms); });
  if (n <= 0) give_up(fmt::format("nothing for {} ms: {}", timeout_ms, what_for));
  return static_cast<std::size_t>(n);
}

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::int64_t cpu_ns(pid_t pid) {
  if (pid == 0) return 0;
  std::int64_t out = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::int64_t ns = 0;
    if (std::ifstream(task.path() / "schedstat") >> ns) out += ns;
  }
  if (error) give_up(fmt::format("process {}: {}", pid, error.message()));
  return out;
}

std::int64_t resident_bytes(pid_t pid) {
  std::int64_t total = 0;
  std::int64_t resident = 0;
  if (pid != 0) std::ifstream(fmt::format("/proc/{}/statm", pid)) >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// 32 steps per power of two.
void Durations::add(std::int64_t ns) {
  const auto value = static_cast<std::uint64_t>(ns < 0 ? 0 : ns) >> 5;
  std::uint64_t index = value;
  if (value >= 64) {
    const int shift = std::bit_width(value) - 6;
    index = static_cast<std::uint64_t>(shift) * 32 + (value >> shift);
  }
  ++counts_[index < counts_.size() ? index : counts_.size() - 1];
  ++total_;
}

double Durations::quantile_us(double part) const {
  const auto wanted = static_cast<std::uint64_t>(part * static_cast<double>(total_));
  std::uint64_t seen = 0;
  for (std::uint64_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen <= wanted && i + 1 < counts_.size()) continue;
    std::uint64_t value = i;
    if (i >= 64) {
      const std::uint64_t shift = i / 32 - 1;
      value = (32 + i % 32) << shift;
    }
    return static_cast<double>(value << 5) / 1000;
  }
  return 0;
}

}  // namespace muster::bench
