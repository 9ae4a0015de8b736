// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/http_line.h"

#include <algorithm>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "rendezvous/net/dial.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

void set_option(int fd, int level, int name, int value) {
  // Without it a dead server is noticed later, by the next call.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

HttpLine::HttpLine(asio::io_context& loop, std::string host, std::uint16_t port)
    : host_(std::move(host)),
      port_(port),
      endpoint_(endpoint_text(host_, port)),
      socket_(loop),
      watchdog_(loop) {}

void HttpLine::arm(Instant deadline) {
  expired_ = false;
  watchdog_.expires_at(deadline);
  if (deadline == Instant::max()) return;
  watchdog_.async_wait([weak = weak_from_this()](const auto& error) {
    const auto self = weak.lock();
    if (error || !self) return;
    self->expired_ = true;
    self->close();
  });
}

Error HttpLine::broken(std::string_view doing, const boost::system::error_code& error) const {
  if (expired_) return {ErrorCode::kTimeout, fmt::format("{} {}: no answer in time", doing, endpoint_)};
  return {ErrorCode::kPeerGone, fmt::format("{} {}: {}", doing, endpoint_, error.message())};
}

asio::awaitable<Result<void>> HttpLine::open(std::optional<tls::Context> tls, std::size_t turn,
                                             Instant deadline) {
  const auto self = shared_from_this();
  const auto dialed = co_await dial(socket_, host_, port_, turn, deadline);
  if (!dialed) co_return fail(dialed.error());
  if (!tls) co_return Result<void>{};
  tls_.emplace(*tls, host_);
  std::string out;
  if (const auto started = tls_->start(out); !started) co_return fail(started.error());
  arm(deadline);
  const auto sent = co_await write(std::move(out));
  if (!sent) co_return fail(sent.error());
  while (!tls_->established()) {
    const auto received = co_await receive();
    if (!received) co_return fail(received.error());
    if (received->empty() && !socket_.is_open())
      co_return fail(ErrorCode::kPeerGone, fmt::format("TLS with {}: it hung up", endpoint_));
  }
  watchdog_.cancel();
  co_return Result<void>{};
}

asio::awaitable<Result<void>> HttpLine::write(std::string bytes) {
  const auto self = shared_from_this();
  const auto [error, size] = co_await asio::async_write(socket_, asio::buffer(bytes), kTuple);
  if (error) co_return fail(broken("send to", error));
  co_return Result<void>{};
}

// Plain bytes; none: TLS has said something of its own, or, with a closed socket, the end.
asio::awaitable<Result<std::string_view>> HttpLine::receive() {
  const auto self = shared_from_this();
  const auto [error, size] = co_await socket_.async_read_some(asio::buffer(buffer_), kTuple);
  if (error == asio::error::eof) {
    close();
    co_return std::string_view{};
  }
  if (error) co_return fail(broken("receive from", error));
  const std::string_view bytes(buffer_.data(), size);
  if (!tls_) co_return bytes;
  plain_.clear();
  std::string out;
  const auto taken = tls_->receive(bytes, plain_, out);
  if (!out.empty()) {
    const auto sent = co_await write(std::move(out));
    if (!sent && taken) co_return fail(sent.error());
  }
  if (!taken) {
    Error refused = taken.error();
    refused.message = fmt::format("TLS with {}: {}", endpoint_, refused.message);
    co_return fail(std::move(refused));
  }
  co_return std::string_view(plain_);
}

asio::awaitable<Result<void>> HttpLine::post(std::string path, std::string body, Instant deadline,
                                             std::string_view fields) {
  const auto self = shared_from_this();
  arm(deadline);
  std::string bytes = http_post(endpoint_, path, body, fields);
  if (tls_) {
    std::string out;
    if (const auto sealed = tls_->send(bytes, out); !sealed) co_return fail(sealed.error());
    bytes = std::move(out);
  }
  const auto sent = co_await write(std::move(bytes));
  watchdog_.cancel();
  if (!sent) co_return fail(sent.error());
  co_return Result<void>{};
}

asio::awaitable<Result<void>> HttpLine::read(HttpAnswer& answer, Instant deadline) {
  const auto self = shared_from_this();
  arm(deadline);
  const auto received = co_await receive();
  watchdog_.cancel();
  if (!received) co_return fail(received.error());
  auto taken = received->empty() && !socket_.is_open() ? answer.end() : answer.receive(*received);
  if (taken) co_return Result<void>{};
  Error error = std::move(taken).error();
  error.message = fmt::format("{}: {}", endpoint_, error.message);
  co_return fail(std::move(error));
}

void HttpLine::probe(Millis patience) {
  const int fd = socket_.native_handle();
  constexpr int kProbes = 3;
  const int interval = std::max(1, static_cast<int>(patience.count() / 1000 / (kProbes + 1)));
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

void HttpLine::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
  if (!expired_) watchdog_.cancel();
}

}  // namespace muster::net
