// SPDX-License-Identifier: Apache-2.0
// The server class on a loop of the test's own.
#include "rendezvous/server/server.h"

#include <arpa/inet.h>
#include <future>
#include <netinet/in.h>
#include <numeric>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <muster/tcp_store.h>

#include "rendezvous/base/log.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/wal/state_log.h"
#include "tests/support/catch.h"
#include "tests/support/held_log.h"
#include "tests/support/hex.h"
#include "tests/support/raw_client.h"

using namespace muster;
using namespace std::chrono_literals;
using muster::net::Server;
using muster::net::ServerOptions;
using muster::test::RawClient;
using muster::test::unhex;

namespace {

const Log kQuiet("test", LogLevel::kOff);

// A loop on a thread, to which the test hands work and waits for it.
class LoopThread {
 public:
  explicit LoopThread(boost::asio::io_context& loop) : loop_(loop), thread_([&loop] { loop.run(); }) {}
  ~LoopThread() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  template <class Work>
  void call(Work work) {
    std::promise<void> done;
    boost::asio::post(loop_, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

 private:
  boost::asio::io_context& loop_;
  std::thread thread_;
};

UniqueFd bound_socket(std::uint16_t& port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

TEST_CASE("the server listens on every address, IPv6 and IPv4") {
  boost::asio::io_context loop(1);
  const auto server = Server::listen(loop, {}, kQuiet);
  REQUIRE_OK(server);
  REQUIRE((*server)->listener().address == "[::]:" + std::to_string((*server)->port()));
  LoopThread thread(loop);
  for (const char* host : {"127.0.0.1", "::1", "localhost"}) {
    const auto client = TcpStore::connect({host, (*server)->port(), -1, 20s});
    REQUIRE_OK(client);
    REQUIRE_OK((*client)->add("n", 1));
  }
  thread.call([&] { (*server)->stop(); });
}

TEST_CASE(
    "stop() ends the clients and lets the loop drain, and a second stop() and the destructor do nothing") {
  boost::asio::io_context loop(1);
  auto server = Server::listen(loop, {}, kQuiet);
  REQUIRE_OK(server);
  LoopThread thread(loop);
  RawClient client = RawClient::modern((*server)->port());
  const std::string_view keys[] = {"/never"};
  REQUIRE(client.alive());
  client.send({.op = wire::Op::kWait, .items = keys});
  thread.call([&] {
    (*server)->stop();
    (*server)->stop();
  });
  REQUIRE(client.ended());
  thread.join();  // run() has returned
  REQUIRE((*server)->stats().num_open == 0);
  server->reset();
}

TEST_CASE("a server that is destroyed before its loop ever ran leaves the loop nothing to do") {
  boost::asio::io_context loop(1);
  { REQUIRE_OK(Server::listen(loop, {}, kQuiet)); }
  REQUIRE(loop.run_for(10s) <= 2);
  REQUIRE(loop.stopped());
}

TEST_CASE("two servers on one loop keep their keys apart") {
  boost::asio::io_context loop(1);
  const auto one = Server::listen(loop, {}, kQuiet);
  const auto two = Server::listen(loop, {}, kQuiet);
  REQUIRE_OK(one);
  REQUIRE_OK(two);
  LoopThread thread(loop);
  const auto a = TcpStore::connect({"127.0.0.1", (*one)->port(), -1, 20s});
  const auto b = TcpStore::connect({"127.0.0.1", (*two)->port(), -1, 20s});
  REQUIRE_OK(a);
  REQUIRE_OK(b);
  REQUIRE((*a)->add("n", 1) == 1);
  REQUIRE((*b)->add("n", 1) == 1);
  thread.call([&] {
    (*one)->stop();
    (*two)->stop();
  });
}

TEST_CASE("an inherited socket that is bound but not listening is taken over") {
  std::uint16_t port = 0;
  boost::asio::io_context loop(1);
  ServerOptions options;
  options.listen_fd = bound_socket(port).release();
  options.port = port;
  const auto server = Server::listen(loop, options, kQuiet);
  REQUIRE_OK(server);
  REQUIRE((*server)->port() == port);
  LoopThread thread(loop);
  REQUIRE(RawClient::modern(port).alive());
  thread.call([&] { (*server)->stop(); });
}

TEST_CASE("a server at several addresses has one store, and at no other address an ear") {
  // At the other address nobody listens, nor does anybody else take the port there.
  std::uint16_t port = 0;
  const UniqueFd held = bound_socket(port);
  auto listener = net::open_listeners({"127.0.0.2", "127.0.0.3"}, port);
  REQUIRE_OK(listener);
  boost::asio::io_context loop(1);
  ServerOptions options;
  options.port = port;
  options.listener = std::make_shared<net::Listener>(*std::move(listener));
  const auto server = Server::listen(loop, options, kQuiet);
  REQUIRE_OK(server);
  REQUIRE((*server)->listener().loopback_only);
  LoopThread thread(loop);
  const auto one = TcpStore::connect({"127.0.0.2", port, -1, 20s});
  const auto other = TcpStore::connect({"127.0.0.3", port, -1, 20s});
  REQUIRE_OK(one);
  REQUIRE_OK(other);
  REQUIRE((*one)->add("n", 1) == 1);
  REQUIRE((*other)->add("n", 1) == 2);
  REQUIRE_FALSE(TcpStore::connect({"127.0.0.1", port, -1, 50ms}));
  thread.call([&] { (*server)->stop(); });
  REQUIRE_FALSE(TcpStore::connect({"127.0.0.3", port, -1, 50ms}));
}

TEST_CASE("a server that begins anew has no keys, no connections, and the same port") {
  boost::asio::io_context loop(1);
  auto server = Server::listen(loop, {}, kQuiet);
  REQUIRE_OK(server);
  LoopThread thread(loop);
  const auto old_client = TcpStore::connect({"127.0.0.1", (*server)->port(), -1, 20s});
  REQUIRE_OK(old_client);
  REQUIRE((*old_client)->add("n", 1) == 1);
  const auto waiting = TcpStore::connect({"127.0.0.1", (*server)->port(), -1, 20s});
  REQUIRE_OK(waiting);
  std::future<bool> waited = std::async(std::launch::async, [&] {
    const std::string key = "never";
    return (*waiting)->wait(std::span(&key, 1), 60s).has_value();
  });
  std::uint64_t num_waiting = 0;
  for (const Instant end = SteadyClock::now() + 20s; num_waiting == 0 && SteadyClock::now() < end;)
    thread.call([&] { num_waiting = (*server)->stats().num_waiting; });
  REQUIRE(num_waiting == 1);
  net::ServerStats stats;
  thread.call([&] {
    (*server)->begin_anew();
    stats = (*server)->stats();
  });
  REQUIRE(stats.num_open == 0);
  REQUIRE(stats.num_waiting == 0);
  REQUIRE(stats.num_keys == 0);
  REQUIRE_FALSE(waited.get());
  REQUIRE_FALSE((*old_client)->add("n", 1));
  const auto new_client = TcpStore::connect({"127.0.0.1", (*server)->port(), -1, 20s});
  REQUIRE_OK(new_client);
  REQUIRE((*new_client)->add("n", 1) == 1);
  thread.call([&] { (*server)->stop(); });
}

TEST_CASE("an inherited socket on another port than the one asked for is refused") {
  std::uint16_t port = 0;
  boost::asio::io_context loop(1);
  ServerOptions options;
  options.listen_fd = bound_socket(port).release();
  options.port = static_cast<std::uint16_t>(port ^ 1);
  const auto server = Server::listen(loop, options, kQuiet);
  REQUIRE_FALSE(server);
  REQUIRE_THAT(server.error().message, Catch::Contains("is bound to port " + std::to_string(port)));
}

TEST_CASE("a client that never reads its answers is closed with a reason, and delays nobody") {
  boost::asio::io_context loop(1);
  ServerOptions options;
  options.slow_reader_timeout = 300ms;
  std::string log;  // of the loop's thread, read when that has ended
  const auto server = Server::listen(
      loop, options, Log("test", LogLevel::kInfo, [&](std::string_view line) { log += line; }));
  REQUIRE_OK(server);
  LoopThread thread(loop);
  RawClient steady = RawClient::modern((*server)->port());
  steady.send({.op = wire::Op::kSet, .key = "/big", .value = std::string(1 << 20, 'x')});
  REQUIRE(steady.alive());
  RawClient slow((*server)->port(), 4096);
  // At once: it is closed soon after the first answer that it does not read.
  std::string bytes = unhex("00 ce f7 85 3c");
  for (int i = 0; i < 64; ++i) wire::encode({.op = wire::Op::kGet, .key = "/big"}, bytes);
  slow.send(bytes);
  const auto num_refused = [&] {
    std::uint64_t out = 0;
    thread.call([&] {
      for (const std::uint64_t count : (*server)->stats().rejections) out += count;
    });
    return out;
  };
  const Instant deadline = SteadyClock::now() + test::kTimeout;
  while (num_refused() == 0) {
    REQUIRE(steady.alive());
    REQUIRE(SteadyClock::now() < deadline);
  }
  REQUIRE(steady.alive());
  thread.call([&] { (*server)->stop(); });
  thread.join();
  REQUIRE_THAT(log, Catch::Contains("it has not read its answers for 300 ms"));
}

TEST_CASE("DELETE_KEY of PyTorch 2.0 is answered once its client has been silent for a moment") {
  boost::asio::io_context loop(1);
  ServerOptions options;
  options.legacy_quiet_time = 5ms;
  const auto server = Server::listen(loop, options, kQuiet);
  REQUIRE_OK(server);
  LoopThread thread(loop);
  RawClient client((*server)->port());
  client.send(unhex("08 02 00 00 00 00 00 00 00 2f 61"));
  REQUIRE(client.receive(8) == std::string(8, '\0'));
  client.send(unhex("06"));
  REQUIRE(client.receive(8) == std::string(8, '\0'));
  thread.call([&] { (*server)->stop(); });
}

TEST_CASE("statistics count connections, refusals, requests, keys and waiters") {
  boost::asio::io_context loop(1);
  const auto server = Server::listen(loop, {}, kQuiet);
  REQUIRE_OK(server);
  LoopThread thread(loop);
  RawClient a = RawClient::modern((*server)->port());
  RawClient b = RawClient::modern((*server)->port());
  RawClient c((*server)->port());
  a.send({.op = wire::Op::kSet, .key = "/k", .value = "v"});
  REQUIRE(a.alive());
  c.send("junk");
  REQUIRE(c.ended());
  const std::string_view keys[] = {"/never"};
  REQUIRE(b.alive());
  b.send({.op = wire::Op::kWait, .items = keys});
  net::ServerStats stats;
  const Instant deadline = SteadyClock::now() + test::kTimeout;
  do {
    thread.call([&] { stats = (*server)->stats(); });
  } while (stats.num_waiting == 0 && SteadyClock::now() < deadline);
  REQUIRE(stats.num_accepted == 3);
  REQUIRE(stats.num_open == 2);
  REQUIRE(std::accumulate(stats.rejections.begin(), stats.rejections.end(), std::uint64_t{0}) == 1);
  REQUIRE(stats.num_requests == 6);
  REQUIRE(stats.num_keys == 1);
  REQUIRE(stats.num_waiting == 1);
  thread.call([&] { (*server)->stop(); });
}

TEST_CASE("what a finished sync covers is answered, and what came meanwhile is taken up after it") {
  using wire::Op;
  boost::asio::io_context loop;
  const auto log = std::make_shared<test::HeldLog>(loop);
  ServerOptions options;
  options.host = "127.0.0.1";
  options.state = log;
  options.limits.pause_output_bytes = 100;
  auto server = Server::listen(loop, options, kQuiet);
  REQUIRE_OK(server);
  LoopThread thread(loop);
  const auto await = [&](auto condition) {
    const Instant deadline = SteadyClock::now() + test::kTimeout;
    bool holds = false;
    while (!holds && SteadyClock::now() < deadline) thread.call([&] { holds = condition(); });
    REQUIRE(holds);
  };
  // The first one's answers fill what it may leave unread, so a SET is taken up only when they have gone out.
  RawClient first((*server)->port());
  std::string bytes;
  wire::encode({.op = Op::kValidate, .number = wire::kMagic}, bytes);
  wire::encode({.op = Op::kSet, .key = "/a", .value = std::string(100, 'a')}, bytes);
  wire::encode({.op = Op::kGet, .key = "/a"}, bytes);
  wire::encode({.op = Op::kSet, .key = "/b", .value = "b"}, bytes);
  first.send(bytes);
  await([&] { return log->writing(); });
  RawClient second((*server)->port());
  bytes.clear();
  wire::encode({.op = Op::kValidate, .number = wire::kMagic}, bytes);
  wire::encode({.op = Op::kAdd, .key = "/n", .number = 1}, bytes);
  second.send(bytes);
  await([&] { return (*server)->stats().num_accepted == 2; });
  std::uint64_t num_requests = 0;
  thread.call([&] {
    num_requests = (*server)->stats().num_requests;
    log->sync();
  });
  REQUIRE(num_requests == 3);
  REQUIRE(first.receive(108).size() == 108);
  await([&] {
    if ((*server)->stats().num_requests < 6 && log->writing()) log->sync();
    return (*server)->stats().num_requests == 6 && log->writing();
  });
  thread.call([&] { log->sync(); });
  REQUIRE(second.receive(8) == unhex("01 00 00 00 00 00 00 00"));
  thread.call([&] { (*server)->stop(); });
}
