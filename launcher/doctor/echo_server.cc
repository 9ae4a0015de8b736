// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/echo_server.h"

#include <exception>
#include <thread>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include "rendezvous/net/listener.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kMaxClients = 4096;
constexpr std::chrono::seconds kIdleTimeout{60};  // a client that says nothing, or does not read

}  // namespace

class EchoServer::Impl {
 public:
  Impl(net::Listener listener, std::string token)
      : token_(std::move(token)), acceptor_(loop_, tcp::v6(), listener.fd.release()) {
    asio::co_spawn(loop_, accept(), asio::detached);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Impl() {
    loop_.stop();
    thread_.join();
  }

 private:
  asio::awaitable<void> accept() {
    while (true) {
      auto [error, socket] = co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
      if (error) {  // no descriptor is left
        asio::steady_timer pause(loop_, std::chrono::milliseconds(100));
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

Result<EchoServer> EchoServer::open(std::string token) {
  MUSTER_TRY(net::Listener listener, net::open_listener("", 0));
  EchoServer out;
  out.port_ = listener.port;
  out.impl_ = std::make_unique<Impl>(std::move(listener), std::move(token));
  return out;
}

EchoServer::EchoServer(EchoServer&&) noexcept = default;
EchoServer::~EchoServer() = default;

}  // namespace muster::launcher
