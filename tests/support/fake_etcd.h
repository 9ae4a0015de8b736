// SPDX-License-Identifier: Apache-2.0
// FakeEtcd: the gateway of an etcd as far as one client sees it, on a test's loop: requests come in and wait
// until the test answers them, in the order that it likes. For tests.
#pragma once

#include <charconv>
#include <cstddef>
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

class FakeEtcd {
 public:
  using tcp = boost::asio::ip::tcp;

  explicit FakeEtcd(boost::asio::io_context& loop)
      : acceptor_(loop, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)) {
    accept();
  }

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

  struct Request {
    std::string path;
    std::string body;
    std::shared_ptr<tcp::socket> from;
  };
  /// Not answered yet, as they came.
  std::vector<Request> requests;

  int num_connections = 0;

  void answer(std::size_t index, const std::string& body) {
    answer_raw(index, "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body,
               false);
  }
  /// These bytes are the answer, after which the connection may end.
  void answer_raw(std::size_t index, const std::string& bytes, bool hang_up) {
    send_raw(index, bytes, hang_up);
    requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(index));
  }
  /// A part of an answer.
  void send_raw(std::size_t index, std::string bytes, bool hang_up = false) {
    const auto kept = std::make_shared<std::string>(std::move(bytes));
    const auto to = requests.at(index).from;
    boost::asio::async_write(*to, boost::asio::buffer(*kept), [kept, to, hang_up](const auto&, std::size_t) {
      boost::system::error_code ignored;
      if (hang_up) to->close(ignored);
    });
  }

 private:
  struct Line {
    std::string input;
    char buffer[65536];
  };

  void accept() {
    auto socket = std::make_shared<tcp::socket>(acceptor_.get_executor());
    acceptor_.async_accept(*socket, [this, socket](const auto& error) {
      if (error) return;
      ++num_connections;
      read(socket, std::make_shared<Line>());
      accept();
    });
  }

  void read(std::shared_ptr<tcp::socket> socket, std::shared_ptr<Line> line) {
    socket->async_read_some(boost::asio::buffer(line->buffer),
                            [this, socket, line](const auto& error, std::size_t size) {
                              if (error) return;
                              line->input.append(line->buffer, size);
                              take(socket, line->input);
                              read(socket, line);
                            });
  }

  // One request at a time is on a line.
  void take(const std::shared_ptr<tcp::socket>& socket, std::string& input) {
    const auto head = input.find("\r\n\r\n");
    if (head == std::string::npos) return;
    constexpr std::string_view kLength = "Content-Length: ";
    const auto at = input.find(kLength);
    std::size_t length = 0;
    if (at < head) std::from_chars(input.data() + at + kLength.size(), input.data() + head, length);
    if (input.size() < head + 4 + length) return;
    const auto path = input.find(' ') + 1;
    requests.push_back({input.substr(path, input.find(' ', path) - path), input.substr(head + 4), socket});
    input.clear();
  }

  tcp::acceptor acceptor_;
};

}  // namespace muster::test
