// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/probe.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <utility>

#include "launcher/doctor/echo_server.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/protocol/clock_offset.h"

namespace muster::launcher {
namespace {

using Outcome = Reach::Outcome;

constexpr int kPings = 4;  // the first one may find caches cold

Outcome outcome_of(int error) {
  switch (error) {
    case ETIMEDOUT:
      return Outcome::kTimeout;
    case ECONNREFUSED:
      return Outcome::kRefused;
    case ENETUNREACH:
    case EHOSTUNREACH:
      return Outcome::kNoRoute;
    default:
      return Outcome::kOther;
  }
}

std::string numeric(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  }
  return text;
}

// One try, a machine that is told when its socket is ready and when its time is up.
class Try {
 public:
  Try(const Target& target, const ProbeLimits& limits, const std::vector<InterfaceAddress>& own, Instant now)
      : target_(target), limits_(limits), own_(own), deadline_(now + limits.connect) {
    result_.address = target.address.substr(0, target.address.find('%'));
    connect();
  }

  [[nodiscard]] bool done() const { return stage_ == Stage::kDone; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] short events() const {
    return stage_ == Stage::kConnecting || !out_.empty() ? POLLIN | POLLOUT : POLLIN;
  }
  [[nodiscard]] Instant deadline() const { return deadline_; }
  [[nodiscard]] const Reach& result() const { return result_; }

  void on_ready() {
    if (stage_ == Stage::kConnecting && !finish_connecting()) return;
    send_some();
    char block[16384];
    while (!done()) {
      const ssize_t n = retry_eintr([&] { return ::recv(fd_.get(), block, sizeof block, MSG_DONTWAIT); });
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (n < 0) return end(stage_ == Stage::kToken ? outcome_of(errno) : Outcome::kOther, errno_text(errno));
      if (n == 0) return end(Outcome::kSomebody, "it closed the connection");
      in_.append(block, static_cast<std::size_t>(n));
      read_on();
    }
  }

  void on_deadline() {
    switch (stage_) {
      case Stage::kConnecting:
        return end(Outcome::kTimeout);
      case Stage::kBig:
        return end(Outcome::kBigLost);
      default:
        return end(Outcome::kSilent);
    }
  }

 private:
  enum class Stage { kConnecting, kToken, kPing, kBig, kDone };

  void end(Outcome outcome, std::string text = {}) {
    result_.outcome = outcome;
    result_.text = std::move(text);
    stage_ = Stage::kDone;
    fd_.reset();
  }

  void connect() {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const std::string port = std::to_string(target_.port);
    if (const int error = ::getaddrinfo(target_.address.c_str(), port.c_str(), &hints, &found); error != 0)
      return end(Outcome::kOther, ::gai_strerror(error));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    fd_.reset(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd_) return end(Outcome::kOther, errno_text(errno));
    const int one = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::connect(fd_.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS)
      end(outcome_of(errno), errno_text(errno));
  }

  bool finish_connecting() {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      end(outcome_of(error), errno_text(error));
      return false;
    }
    sockaddr_storage mine{};
    size = sizeof mine;
    if (::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&mine), &size) == 0)
      result_.interface = interface_of(own_, numeric(mine));
    stage_ = Stage::kToken;
    return true;
  }

  void read_on() {
    if (stage_ == Stage::kToken && in_.size() >= kTokenBytes) {
      if (in_.substr(0, kTokenBytes) != target_.token) return end(Outcome::kSomebody);
      in_.erase(0, kTokenBytes);
      stage_ = Stage::kPing;
      deadline_ = SteadyClock::now() + limits_.talk;
      ping();
    }
    if (stage_ == Stage::kPing && in_.size() >= kPongBytes) take_pong();
    if (stage_ == Stage::kBig && in_.size() >= kBigBytes) end(Outcome::kWorks);
  }

  void ping() {
    sent_ = SteadyClock::now();
    sent_wall_ = wall_nanoseconds();
    out_ += kPing;
    send_some();
  }

  void take_pong() {
    const double trip = std::chrono::duration<double, std::milli>(SteadyClock::now() - sent_).count();
    std::uint64_t wall = 0;
    for (std::size_t i = kPongBytes - 1; i > 0; --i) wall = wall << 8 | static_cast<unsigned char>(in_[i]);
    in_.erase(0, kPongBytes);
    if (result_.round_trip_ms < 0 || trip < result_.round_trip_ms) {
      result_.round_trip_ms = trip;
      const auto ahead = static_cast<std::int64_t>(wall - static_cast<std::uint64_t>(sent_wall_));
      result_.clock_ms = static_cast<double>(ahead) / 1e6 - trip / 2;
    }
    if (++pongs_ < kPings) return ping();
    stage_ = Stage::kBig;
    deadline_ = SteadyClock::now() + limits_.big;
    out_.append(kBigBytes, kBig);
    send_some();
  }

  void send_some() {
    while (!out_.empty()) {
      const ssize_t n = retry_eintr(
          [&] { return ::send(fd_.get(), out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL); });
      if (n < 0) return;  // later, or the read tells
      out_.erase(0, static_cast<std::size_t>(n));
    }
  }

  const Target& target_;
  const ProbeLimits& limits_;
  const std::vector<InterfaceAddress>& own_;
  Instant deadline_;
  Stage stage_ = Stage::kConnecting;
  UniqueFd fd_;
  std::string in_;
  std::string out_;
  Instant sent_{};
  std::int64_t sent_wall_ = 0;
  int pongs_ = 0;
  Reach result_;
};

// Waits for the first of them to have something to say.
void turn(std::vector<std::pair<std::size_t, std::unique_ptr<Try>>>& running) {
  std::vector<pollfd> entries;
  Instant next = Instant::max();
  for (const auto& [index, each] : running) {
    entries.push_back({each->fd(), each->events(), 0});
    next = std::min(next, each->done() ? SteadyClock::now() : each->deadline());
  }
  const auto left = time_left(next, SteadyClock::now());
  (void)::poll(entries.data(), entries.size(), static_cast<int>(left.count()));
  const Instant now = SteadyClock::now();
  for (std::size_t i = 0; i < running.size(); ++i) {
    Try& each = *running[i].second;
    if (!each.done() && entries[i].revents != 0) each.on_ready();
    if (!each.done() && each.deadline() <= now) each.on_deadline();
  }
}

}  // namespace

std::vector<Reach> probe(const std::vector<Target>& targets, const ProbeLimits& limits,
                         const std::vector<InterfaceAddress>& own) {
  std::vector<Reach> out(targets.size());
  std::vector<std::pair<std::size_t, std::unique_ptr<Try>>> running;
  for (std::size_t next = 0; next < targets.size() || !running.empty();) {
    while (next < targets.size() && running.size() < limits.at_once) {
      running.emplace_back(next, std::make_unique<Try>(targets[next], limits, own, SteadyClock::now()));
      ++next;
    }
    turn(running);
    std::erase_if(running, [&](const auto& each) {
      if (each.second->done()) out[each.first] = each.second->result();
      return each.second->done();
    });
  }
  return out;
}

}  // namespace muster::launcher
