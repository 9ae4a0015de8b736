// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/probe.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <thread>
#include <tuple>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/net/awaitable.h"
#include "rendezvous/net/listener.h"

namespace muster::launcher {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kMaxClients = 4096;
constexpr std::chrono::seconds kIdleTimeout{60};  // a client that says nothing, or does not read

class EchoThread {
 public:
  EchoThread(net::Listener listener, std::string token)
      : token_(std::move(token)), acceptor_(loop_, tcp::v6(), listener.fds.front().release()) {
    asio::co_spawn(loop_, accept(), asio::detached);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~EchoThread() {
    loop_.stop();
    thread_.join();
  }

 private:
  asio::awaitable<void> accept() {
    while (true) {
      auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
      if (error) {  // no descriptor is left
        LoopTimer pause(loop_, std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::use_awaitable);
      } else if (num_clients_ < kMaxClients) {
        ++num_clients_;
        asio::co_spawn(loop_, serve(std::move(socket)),
                       [this](const std::exception_ptr&) { --num_clients_; });
      }
    }
  }

  // Until the client hangs up, says nothing for a while, or breaks the rules: what fails throws, and ends it.
  asio::awaitable<void> serve(tcp::socket socket) {
    socket.set_option(tcp::no_delay(true));
    boost::beast::tcp_stream stream(std::move(socket));
    std::string input(kBigBytes, '\0');
    for (std::string reply = token_;;) {
      stream.expires_after(kIdleTimeout);
      co_await asio::async_write(stream, asio::buffer(reply), asio::use_awaitable);
      stream.expires_after(kIdleTimeout);
      co_await asio::async_read(stream, asio::buffer(input, 1), asio::use_awaitable);
      const char kind = input[0];
      if (kind != kPing && kind != kBig) co_return;
      if (kind == kBig)
        co_await asio::async_read(stream, asio::buffer(input, kBigBytes - 1), asio::use_awaitable);
      reply = std::string(kind == kPing ? 1 : kBigBytes, kind);
    }
  }

  asio::io_context loop_{1};
  const std::string token_;
  tcp::acceptor acceptor_;
  std::size_t num_clients_ = 0;
  std::thread thread_;
};

using boost::system::error_code;
using Outcome = Reach::Outcome;

using net::kTuple;

constexpr int kPings = 4;  // the first one may find caches cold

Outcome failure_of(int error) {
  if (error == ETIMEDOUT) return Outcome::kTimeout;
  if (error == ECONNREFUSED) return Outcome::kRejected;
  return error == ENETUNREACH || error == EHOSTUNREACH ? Outcome::kNoRoute : Outcome::kOther;
}

// One try: connect, read the token, ping, and send a big message, each with its own deadline.
class Try {
 public:
  Try(asio::io_context& loop, const Target& target, const ProbeLimits& limits,
      const std::vector<InterfaceAddress>& own)
      : target_(target), limits_(limits), own_(own), stream_(loop) {
    result_.address = target.address.substr(0, target.address.find('%'));
  }

  asio::awaitable<Reach> run() {
    co_await steps();
    co_return result_;
  }

 private:
  void end(Outcome outcome, std::string text = {}) {
    result_.outcome = outcome;
    result_.text = std::move(text);
  }

  // `late`: what a time-out means at this step.
  void fail_step(const error_code& error, Outcome late) {
    if (error == boost::beast::error::timeout) return end(late);
    if (error == asio::error::eof) return end(Outcome::kOtherHost, "it closed the connection");
    end(failure_of(error.value()), errno_text(error.value()));
  }

  asio::awaitable<void> steps() {
    error_code error;
    const auto address = asio::ip::make_address(target_.address, error);
    if (error) co_return end(Outcome::kOther, error.message());
    stream_.expires_after(limits_.step);
    std::tie(error) = co_await stream_.async_connect(tcp::endpoint(address, target_.port), kTuple);
    if (error) co_return fail_step(error, Outcome::kTimeout);
    const auto mine = stream_.socket().local_endpoint(error).address();
    result_.interface = interface_of(own_, text_of(mine));
    stream_.socket().set_option(tcp::no_delay(true), error);

    std::string token(kTokenBytes, '\0');
    if (error = co_await read(token); error) co_return fail_step(error, Outcome::kSilent);
    if (token != target_.token) co_return end(Outcome::kOtherHost);
    stream_.expires_after(limits_.step);
    for (int i = 0; i < kPings; ++i)
      if (error = co_await ping(); error) co_return fail_step(error, Outcome::kSilent);
    stream_.expires_after(limits_.step);
    std::string big(kBigBytes, kBig);
    error = co_await write(big);
    if (!error) error = co_await read(big);
    if (error) co_return fail_step(error, Outcome::kBigLost);
    end(Outcome::kWorks);
  }

  asio::awaitable<error_code> ping() {
    const Instant sent = SteadyClock::now();
    std::string byte(1, kPing);
    if (const error_code error = co_await write(byte); error) co_return error;
    if (const error_code error = co_await read(byte); error) co_return error;
    const auto trip = std::chrono::round<std::chrono::microseconds>(SteadyClock::now() - sent).count();
    if (result_.round_trip_us < 0 || trip < result_.round_trip_us) result_.round_trip_us = trip;
    co_return error_code();
  }

  // All of `bytes`.
  asio::awaitable<error_code> read(std::string& bytes) {
    const auto [error, size] = co_await asio::async_read(stream_, asio::buffer(bytes), kTuple);
    co_return error;
  }
  asio::awaitable<error_code> write(const std::string& bytes) {
    const auto [error, size] = co_await asio::async_write(stream_, asio::buffer(bytes), kTuple);
    co_return error;
  }

  static std::string text_of(const asio::ip::address& address) {
    std::string out = address.to_string();
    return out.substr(0, out.find('%'));
  }

  const Target& target_;
  const ProbeLimits& limits_;
  const std::vector<InterfaceAddress>& own_;
  boost::beast::tcp_stream stream_;
  Reach result_;
};

}  // namespace

Result<EchoServer> EchoServer::open(std::string token) {
  MUSTER_TRY(net::Listener listener, net::open_listener("", 0));
  const std::uint16_t port = listener.port;
  return EchoServer{port, std::make_shared<EchoThread>(std::move(listener), std::move(token))};
}

std::vector<Reach> probe(const std::vector<Target>& targets, const ProbeLimits& limits,
                         const std::vector<InterfaceAddress>& own) {
  std::vector<Reach> out(targets.size());
  asio::io_context loop(1);
  std::size_t next = 0;
  const auto work = [&]() -> asio::awaitable<void> {
    while (next < targets.size()) {
      const std::size_t index = next++;
      Try one(loop, targets[index], limits, own);
      out[index] = co_await one.run();
    }
  };
  for (std::size_t i = 0; i < std::min(limits.at_once, targets.size()); ++i)
    asio::co_spawn(loop, work(), [](const std::exception_ptr& exception) {
      if (exception) std::rethrow_exception(exception);
    });
  loop.run();
  return out;
}

}  // namespace muster::launcher
