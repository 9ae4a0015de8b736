// SPDX-License-Identifier: Apache-2.0
// Which of several addresses answers, over loopback addresses that answer, refuse or are silent.
#include "rendezvous/agent_client/address_race.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "rendezvous/base/unique_fd.h"
#include "rendezvous/net/dial.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;

namespace {

sockaddr_in at(const char* address, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  REQUIRE(::inet_pton(AF_INET, address, &out.sin_addr) == 1);
  return out;
}

struct Listening {
  explicit Listening(const char* address, std::uint16_t wanted = 0, int backlog = 16)
      : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name = at(address, wanted);
    socklen_t size = sizeof name;
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), size) == 0);
    REQUIRE(::listen(fd.get(), backlog) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0);
    port = ntohs(name.sin_port);
  }
  UniqueFd fd;
  std::uint16_t port = 0;
};

// A port whose queue is full: the kernel drops what else knocks, as a firewall does.
struct Silent : Listening {
  explicit Silent(const char* address) : Listening(address, 0, 0) {
    const sockaddr_in name = at(address, port);
    for (int i = 0; i < 4; ++i) {
      UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const int connected = ::connect(one.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name);
      REQUIRE((connected == 0 || errno == EINPROGRESS));
      queue.push_back(std::move(one));
    }
  }
  std::vector<UniqueFd> queue;
};

using Winner = net::AddressRace::Answer;

Result<Winner> race(net::AddressRace::Options course) {
  boost::asio::io_context loop(1);
  std::optional<Result<Winner>> out;
  const net::AddressRace one(loop, std::move(course),
                             [&](Result<Winner> result) { out = std::move(result); });
  loop.run_for(30s);
  REQUIRE(out);
  return *std::move(out);
}

}  // namespace

TEST_CASE("an address that refuses is passed over for one that answers") {
  const Listening there("127.0.0.3");
  const auto winner = race({{"127.0.0.2", "127.0.0.3"}, there.port, 1h, 20s});
  REQUIRE_OK(winner);
  REQUIRE(winner->address == "127.0.0.3");
  REQUIRE_FALSE(winner->local_address.empty());
}

TEST_CASE("where nobody need listen, an address that refuses has answered, and one that is silent has not") {
  const Silent silent("127.0.0.2");
  net::AddressRace::Options course{{"127.0.0.2", "127.0.0.3"}, silent.port, 10ms, 20s};
  course.refusal_answers = true;
  const auto winner = race(course);
  REQUIRE_OK(winner);
  REQUIRE(*winner == Winner{"127.0.0.3", ""});
}

TEST_CASE("an address that is silent is not waited for") {
  const Silent silent("127.0.0.2");
  const Listening there("127.0.0.3", silent.port);
  const auto winner = race({{"127.0.0.2", "127.0.0.3"}, there.port, 10ms, 1h});
  REQUIRE_OK(winner);
  REQUIRE(winner->address == "127.0.0.3");
}

TEST_CASE("the first address wins where it answers") {
  const Listening first("127.0.0.2");
  const Listening second("127.0.0.3", first.port);
  const auto winner = race({{"127.0.0.2", "127.0.0.3"}, first.port, 1h, 20s});
  REQUIRE_OK(winner);
  REQUIRE(winner->address == "127.0.0.2");
}

TEST_CASE("where none answers, what is wrong with each is told") {
  std::uint16_t port = 0;
  {
    const Listening gone("127.0.0.2");
    port = gone.port;
  }
  const auto winner = race({{"127.0.0.2", "no such address"}, port, 1h, 20s});
  REQUIRE_FALSE(winner);
  REQUIRE_THAT(winner.error().message, Catch::Contains("connect 127.0.0.2:" + std::to_string(port)));
  REQUIRE_THAT(winner.error().message, Catch::Contains("no such address"));
}

TEST_CASE("a race among the silent ends at its limit") {
  const Silent silent("127.0.0.2");
  const auto winner = race({{"127.0.0.2"}, silent.port, 1h, 50ms});
  REQUIRE_FALSE(winner);
  REQUIRE(winner.error().code == ErrorCode::kTimeout);
}

TEST_CASE("no address is an error, not a wait") {
  const auto winner = race({{}, 1, 1h, 20s});
  REQUIRE_FALSE(winner);
  REQUIRE(winner.error().code == ErrorCode::kNotFound);
}

TEST_CASE("a race that is given up says nothing more") {
  const Listening there("127.0.0.2");
  boost::asio::io_context loop(1);
  bool told = false;
  {
    const net::AddressRace one(loop, {{"127.0.0.2"}, there.port, 1h, 20s}, [&](const auto&) { told = true; });
    loop.run_one();
  }
  loop.run_for(30s);
  REQUIRE(loop.stopped());  // nothing is left to do
  REQUIRE_FALSE(told);
}

// The timer of dial() fires while the connection is made: both handlers are queued in one turn of the loop.
TEST_CASE("a connection that is made at its deadline stays open, or is reported as late") {
  Listening port("127.0.0.1", 0, 0);
  const sockaddr_in name = at("127.0.0.1", port.port);
  UniqueFd first(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(first.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  boost::asio::io_context loop{1};
  boost::asio::ip::tcp::socket socket(loop);
  std::optional<Result<void>> dialed;
  const Instant deadline = SteadyClock::now() + 100ms;
  boost::asio::co_spawn(loop, net::dial(socket, "127.0.0.1", port.port, 0, deadline),
                        [&](const std::exception_ptr& exception, Result<void> result) {
                          REQUIRE_FALSE(exception);
                          dialed = std::move(result);
                        });
  while (!socket.is_open()) loop.poll();
  // Its SYN was dropped, since the queue is full; the next one, after a second, finds room.
  REQUIRE_FALSE(dialed);
  const UniqueFd accepted(::accept4(port.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  pollfd made{socket.native_handle(), POLLOUT, 0};
  REQUIRE(::poll(&made, 1, 20'000) == 1);
  REQUIRE(SteadyClock::now() > deadline);
  while (!dialed) loop.poll();
  loop.poll();
  REQUIRE(socket.is_open() == dialed->has_value());
}
