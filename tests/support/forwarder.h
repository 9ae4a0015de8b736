// SPDX-License-Identifier: Apache-2.0
// Forwarder: a port of this host that leads to another one, on a test's loop, whose connections a test can
// cut or hold. For tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

namespace muster::test {

class Forwarder {
 public:
  using tcp = boost::asio::ip::tcp;

  Forwarder(boost::asio::io_context& loop, std::uint16_t to)
      : loop_(loop), acceptor_(loop, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)), to_(to) {
    accept();
  }

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  [[nodiscard]] int num_accepted() const { return num_accepted_; }
  [[nodiscard]] std::size_t num_bytes() const { return *num_bytes_; }
  /// Both ends of every connection see a reset.
  void cut() {
    for (const auto& weak : std::exchange(pairs_, {}))
      if (const auto pair = weak.lock()) pair->close();
  }

 private:
  struct Pair : std::enable_shared_from_this<Pair> {
    explicit Pair(boost::asio::io_context& loop) : near(loop), far(loop) {}

    void pump(tcp::socket& from, tcp::socket& to, std::string& buffer) {
      buffer.resize(65536);
      from.async_read_some(boost::asio::buffer(buffer), [self = shared_from_this(), &from, &to, &buffer](
                                                            const auto& error, std::size_t size) {
        if (error) return self->close();
        *self->num_bytes += size;
        buffer.resize(size);
        boost::asio::async_write(to, boost::asio::buffer(buffer),
                                 [self, &from, &to, &buffer](const auto& failed, std::size_t) {
                                   if (failed) return self->close();
                                   self->pump(from, to, buffer);
                                 });
      });
    }
    void close() {
      boost::system::error_code ignored;
      near.set_option(boost::asio::socket_base::linger(true, 0), ignored);
      far.set_option(boost::asio::socket_base::linger(true, 0), ignored);
      near.close(ignored);
      far.close(ignored);
    }

    tcp::socket near;
    tcp::socket far;
    std::string there;
    std::string back;
    std::shared_ptr<std::size_t> num_bytes;
  };

  void accept() {
    const auto pair = std::make_shared<Pair>(loop_);
    pair->num_bytes = num_bytes_;
    acceptor_.async_accept(pair->near, [this, pair](const auto& error) {
      if (error) return;
      ++num_accepted_;
      boost::system::error_code failed;
      pair->far.connect({boost::asio::ip::address_v4::loopback(), to_}, failed);
      if (!failed) {
        pairs_.push_back(pair);
        pair->pump(pair->near, pair->far, pair->there);
        pair->pump(pair->far, pair->near, pair->back);
      }
      accept();
    });
  }

  boost::asio::io_context& loop_;
  tcp::acceptor acceptor_;
  std::uint16_t to_;
  int num_accepted_ = 0;
  std::shared_ptr<std::size_t> num_bytes_ = std::make_shared<std::size_t>(0);
  std::vector<std::weak_ptr<Pair>> pairs_;
};

}  // namespace muster::test
