// SPDX-License-Identifier: Apache-2.0
// Floods of unauthenticated peers against a running musterd: a client that was there before is answered
// throughout, memory stays bounded, and the log stays readable.
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/net/rejection_log.h"
#include "tests/support/catch.h"
#include "tests/support/hex.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"
#include "tests/support/sanitized.h"
#include "tests/support/seed.h"

using namespace muster;
using muster::test::kSanitized;
using muster::test::Musterd;
using muster::test::RawClient;
using muster::test::unhex;

namespace {

// Resident bytes of a process.
std::size_t resident_bytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  std::size_t total = 0;
  std::size_t resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// A sanitizer keeps what was freed.
void require_little_growth(const Musterd& daemon, std::size_t before, std::size_t allowed) {
  const std::size_t after = resident_bytes(daemon.pid());
  std::printf("musterd has %zu KiB, %zu KiB before\n", after >> 10, before >> 10);
  if (!kSanitized) REQUIRE(after < before + allowed);
}

struct Refusals {
  std::size_t lines = 0;
  std::size_t connections = 0;
};

// What the log says about closed connections: "closed A: why", or "closed N more connections ...".
Refusals refusals_in(const std::string& log) {
  Refusals out;
  constexpr std::string_view kWord = " closed ";
  for (std::size_t at = log.find(kWord); at != std::string::npos; at = log.find(kWord, at)) {
    at += kWord.size();
    const std::size_t end = log.find('\n', at);
    const std::string line = log.substr(at, end - at);
    ++out.lines;
    const bool summary = line.find(" more connections ") != std::string::npos;
    out.connections += summary ? std::stoul(line) : 1;
    at = end;  // a summary repeats the last line's text
  }
  return out;
}

// Stops the daemon; what its log must be after `count` connections that it refused within `seconds`.
void require_readable_log(Musterd& daemon, std::size_t count, Instant began) {
  daemon.signal(SIGTERM);
  const auto [code, log] = daemon.finish();
  REQUIRE(code == 0);
  const Refusals refusals = refusals_in(log);
  const auto seconds =
      static_cast<std::size_t>(std::chrono::duration<double>(SteadyClock::now() - began).count());
  REQUIRE(refusals.connections == count);
  REQUIRE(refusals.lines <= net::kNumRejections * (net::RejectionLog::kBurst + seconds + 2));
}

// A connection from 127.0.<a>.<b>, non-blocking once connected.
UniqueFd connect_from(std::uint32_t source, std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw std::runtime_error("socket: " + errno_text(errno));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + source);
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("bind: " + errno_text(errno));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("connect: " + errno_text(errno));
  return fd;
}

// Closes without leaving the port in TIME_WAIT.
void reset(UniqueFd& fd) {
  const linger now{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  fd.reset();
}

bool ends(int fd) {
  const Instant deadline = SteadyClock::now() + test::kTimeout;
  char block[512];
  while (true) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(time_left(deadline, SteadyClock::now()).count())) <= 0)
      return false;
    if (::recv(fd, block, sizeof block, MSG_DONTWAIT) <= 0) return true;
  }
}

}  // namespace

TEST_CASE("ten thousand peers with TLS, HTTP and garbage cost a few lines and disturb nobody") {
  constexpr std::size_t kPeers = 10'000;
  const std::string hellos[] = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      unhex("16 03 01 02 00 01 00 01 fc 03 03") + std::string(500, 'r'),
      "SSH-2.0-OpenSSH_9.2\r\n",
      "\xABmuster but not really",
  };
  Musterd daemon = Musterd::listening();
  RawClient steady = RawClient::modern(daemon.port());
  REQUIRE(steady.alive());
  const std::size_t before = resident_bytes(daemon.pid());
  const Instant began = SteadyClock::now();
  for (std::size_t i = 0; i < kPeers; ++i) {
    UniqueFd peer = connect_from(static_cast<std::uint32_t>(i % 7), daemon.port());
    const std::string& hello = hellos[i % std::size(hellos)];
    REQUIRE(::send(peer.get(), hello.data(), hello.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(hello.size()));
    REQUIRE(ends(peer.get()));
    reset(peer);
    if (i % 100 == 0) REQUIRE(steady.alive());
  }
  require_little_growth(daemon, before, std::size_t{16} << 20);
  REQUIRE(steady.alive());
  require_readable_log(daemon, kPeers, began);
}

TEST_CASE("a flood of random bytes ends in reasons and leaves the daemon serving") {
  std::mt19937 random(test::seed());
  Musterd daemon = Musterd::listening();
  RawClient steady = RawClient::modern(daemon.port());
  steady.send({.op = wire::Op::kSet, .key = "/mine", .value = "here"});
  REQUIRE(steady.alive());
  const std::size_t before = resident_bytes(daemon.pid());
  for (std::size_t i = 0; i < 2000; ++i) {
    UniqueFd peer = connect_from(static_cast<std::uint32_t>(i % 7), daemon.port());
    std::string bytes(1 + random() % 4096, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Half of them get beyond the first check.
    if (i % 2 == 0) bytes.insert(0, i % 4 == 0 ? unhex("00 ce f7 85 3c") : std::string("\xABmuster\x07\x07"));
    // It may be closed before all is sent.
    (void)::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    reset(peer);
    if (i % 50 == 0) REQUIRE(steady.alive());
  }
  steady.send({.op = wire::Op::kGet, .key = "/mine"});
  REQUIRE(steady.receive(12) == unhex("04 00 00 00 00 00 00 00") + "here");
  require_little_growth(daemon, before, std::size_t{32} << 20);
  daemon.signal(SIGTERM);
  const auto [code, log] = daemon.finish();
  REQUIRE(code == 0);
  REQUIRE(refusals_in(log).lines < 1000);
}

TEST_CASE("ten thousand half-open connections leave the daemon serving in bounded memory") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  constexpr rlim_t kSpare = 200;
  const std::size_t count = std::min<rlim_t>(10'000, limit.rlim_max - kSpare);
  if (count < 10'000)
    std::printf("only %zu connections: the descriptor limit is %zu\n", count, limit.rlim_max);

  const std::string beginnings[] = {
      "",                                                     // a scanner that waits
      unhex("00 ce f7"),                                      // of VALIDATE
      unhex("00 ce f7 85 3c 01 05 00 00 00 00 00 00 00 2f"),  // of SET
      "\xABmus",                                              // of an agent
  };
  Musterd daemon = Musterd::listening();
  RawClient steady = RawClient::modern(daemon.port());
  REQUIRE(steady.alive());
  const std::size_t before = resident_bytes(daemon.pid());
  std::vector<UniqueFd> peers;
  for (std::size_t i = 0; i < count; ++i) {
    peers.push_back(connect_from(static_cast<std::uint32_t>(i % 7), daemon.port()));
    const std::string& bytes = beginnings[i % std::size(beginnings)];
    if (!bytes.empty())
      REQUIRE(::send(peers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(bytes.size()));
    if (i % 100 == 0) REQUIRE(steady.alive());
  }
  REQUIRE(steady.alive());
  require_little_growth(daemon, before, count * 4096);
  for (UniqueFd& peer : peers) reset(peer);
  RawClient late = RawClient::modern(daemon.port());
  REQUIRE(late.alive());
  daemon.signal(SIGTERM);
  const auto [code, log] = daemon.finish();
  REQUIRE(code == 0);
  REQUIRE(refusals_in(log).lines < 1000);
}
