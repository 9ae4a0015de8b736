// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/status/status_server.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <fmt/format.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/split.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/awaitable.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Descriptor = asio::posix::stream_descriptor;
using Response = http::response<http::string_body>;

constexpr std::size_t kMaxHeadBytes = 8192;
// After the answer: a close with something unread would be a reset, which may overtake the answer.
constexpr Millis kDrainTimeout{1'000};

}  // namespace

struct StatusStream::Connection {
  Connection(asio::io_context& loop, UniqueFd fd) : stream(loop), wake(loop) {
    error_code ignored;
    stream.socket().assign(asio::ip::tcp::v4(), fd.get(), ignored);
    if (!ignored) (void)fd.release();
  }
  void close() {
    stream.close();
    wake.cancel();
  }

  beast::tcp_stream stream;
  bool replying = false;
  bool streaming = false;
  bool finished = false;  // the owner of the stream has no more
  std::string pending;    // of the stream
  std::optional<StatusReply> late;
  LoopTimer wake;  // cancelled: one of the three above has changed, or the connection is closed
};

bool StatusStream::is_open() const {
  const auto connection = connection_.lock();
  return connection && connection->stream.socket().is_open();
}

void StatusStream::send(std::string bytes) const {
  const auto connection = connection_.lock();
  if (!connection) return;
  connection->pending = std::move(bytes);
  connection->wake.cancel();
}

void StatusStream::finish() const {
  const auto connection = connection_.lock();
  if (!connection) return;
  connection->finished = true;
  connection->wake.cancel();
}

StatusReply plain_reply(int status, std::string text) {
  return {.status = status, .type = "text/plain; charset=utf-8", .body = std::move(text)};
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  for (const std::string_view pair : split(query, '&')) {
    if (!pair.starts_with(name) || pair.substr(name.size(), 1) != "=") continue;
    const std::string_view value = pair.substr(name.size() + 1);
    std::string out;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string_view digits = value.substr(i + 1, 2);
      std::uint8_t byte = 0;
      if (value[i] == '%' && digits.size() == 2 &&
          std::from_chars(digits.data(), digits.data() + 2, byte, 16).ptr == digits.data() + 2) {
        out += static_cast<char>(byte);
        i += 2;
      } else {
        out += value[i] == '+' ? ' ' : value[i];
      }
    }
    return out;
  }
  return std::nullopt;
}

namespace {

using Connection = StatusStream::Connection;

Response response_of(const StatusReply& reply) {
  Response out(static_cast<http::status>(reply.status), 11);
  out.set(http::field::content_type, {reply.type.data(), reply.type.size()});
  for (const auto& [name, value] : reply.headers) out.set(name, value);
  out.body() = reply.body;
  out.prepare_payload();
  out.set(http::field::cache_control, "no-store");
  out.set("X-Content-Type-Options", "nosniff");  // else a browser may take a name in it for markup
  out.keep_alive(false);
  return out;
}

StatusReply plain(http::status status, std::string text) {
  return plain_reply(static_cast<int>(status), std::move(text));
}

}  // namespace

class StatusServer::Impl final : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& loop, Listener listener, Answer answer, const StatusServerOptions& options)
      : loop_(loop),
        options_(options),
        answer_(std::move(answer)),
        // One at a time: a request that came with its connection is answered before the next is accepted.
        acceptor_(std::move(listener), 1),
        ready_(loop, acceptor_.listener().fds.front().get()) {}

  void wait_accept() {
    ready_.async_wait(Descriptor::wait_read, [weak = weak_from_this()](const auto& error) {
      const auto self = weak.lock();
      if (!self || error || self->stopped_) return;
      self->acceptor_.accept_some([&](UniqueFd fd) { self->admit(std::move(fd)); },
                                  [](const std::string&) {});
      self->wait_accept();
    });
  }

  [[nodiscard]] std::size_t count_streams() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(connections_, [](const auto& entry) { return entry.second->streaming; }));
  }

  void stop() {
    if (std::exchange(stopped_, true)) return;
    for (const auto& [id, connection] : connections_) connection->close();
    (void)ready_.release();
    acceptor_.close();
  }

 private:
  using Id = std::uint64_t;
  using ConnectionPtr = std::shared_ptr<Connection>;

  void admit(UniqueFd fd) {
    if (connections_.size() >= options_.max_connections && !drop_one()) return;
    const Id id = next_id_++;
    const auto connection = std::make_shared<Connection>(loop_, std::move(fd));
    connections_.emplace(id, connection);
    asio::co_spawn(loop_, serve(connection), [self = shared_from_this(), id](const std::exception_ptr&) {
      self->connections_.erase(id);
    });
  }

  // The oldest that has not asked yet, or has its answer and does not go; false: all are being answered.
  bool drop_one() {
    for (const auto& [id, connection] : connections_) {
      if (connection->replying) continue;
      connection->close();
      return connections_.erase(id) > 0;
    }
    return false;
  }

  asio::awaitable<void> serve(ConnectionPtr connection) {
    beast::tcp_stream& stream = connection->stream;
    beast::flat_buffer buffer(kMaxHeadBytes);
    http::request_parser<http::empty_body> request;
    request.header_limit(kMaxHeadBytes);
    request.body_limit(boost::none);  // a body is not read
    stream.expires_after(options_.request_timeout);
    std::size_t num_bytes = 0;  // the parser takes field by field, and forgets those before
    error_code error;
    while (!error && !request.is_header_done() && num_bytes + buffer.size() <= kMaxHeadBytes) {
      std::size_t size = 0;
      std::tie(error, size) = co_await http::async_read_some(stream, buffer, request, kTuple);
      num_bytes += size;
    }
    if (stopped_ || !stream.socket().is_open() || error == http::error::end_of_stream) co_return;
    connection->replying = true;
    StatusReply reply = reply_to(request, error);
    if (reply.later) {
      // It is kept by the connection: the caller may answer at once, or when nobody waits any more.
      const std::weak_ptr<Connection> weak = connection;
      std::exchange(reply.later, nullptr)([weak](StatusReply late) {
        const auto there = weak.lock();
        if (!there) return;
        there->late = std::move(late);
        there->wake.cancel();
      });
      connection->wake.expires_after(options_.reply_timeout);
      if (!connection->late) co_await connection->wake.async_wait(kTuple);
      if (stopped_ || !stream.socket().is_open()) co_return;
      reply = connection->late ? std::move(*connection->late)
                               : plain(http::status::gateway_timeout, "no answer came in time\n");
    }
    if (reply.stream && count_streams() >= options_.max_streams)
      reply = plain(http::status::service_unavailable, "too many streams are open\n");
    if (reply.stream) {
      co_await serve_stream(connection, reply);
      co_return;
    }
    auto response = response_of(reply);
    if (request.is_header_done() && request.get().method() == http::verb::head) response.body().clear();
    stream.expires_after(options_.reply_timeout);
    // Of a peer that does not read: else the kernel would go on offering it the rest.
    error_code ignored;
    stream.socket().set_option(asio::socket_base::linger(true, 0), ignored);
    std::tie(error, num_bytes) = co_await http::async_write(stream, response, kTuple);
    if (error) co_return;
    stream.socket().set_option(asio::socket_base::linger(false, 0), ignored);
    stream.socket().shutdown(asio::socket_base::shutdown_send, ignored);
    connection->replying = false;
    stream.expires_after(kDrainTimeout);
    std::array<char, 4096> rest;
    while (!error) std::tie(error, num_bytes) = co_await stream.async_read_some(asio::buffer(rest), kTuple);
  }

  // Without a length: the connection's end is its end.
  asio::awaitable<void> serve_stream(ConnectionPtr connection, const StatusReply& reply) {
    beast::tcp_stream& stream = connection->stream;
    connection->streaming = true;
    http::response<http::empty_body> head(response_of(reply).base());
    head.erase(http::field::content_length);
    http::response_serializer<http::empty_body> serializer(head);
    stream.expires_after(options_.reply_timeout);
    auto [error, size] = co_await http::async_write_header(stream, serializer, kTuple);
    if (error || stopped_) co_return;  // the owner of the answer may be gone
    asio::co_spawn(loop_, watch_end(connection), [](const std::exception_ptr&) {});
    reply.stream(StatusStream(connection));
    while (!error && stream.socket().is_open()) {
      if (connection->pending.empty()) {
        if (connection->finished) break;
        connection->wake.expires_at(Instant::max());
        co_await connection->wake.async_wait(kTuple);
        continue;
      }
      const std::string bytes = std::exchange(connection->pending, {});
      stream.expires_after(options_.reply_timeout);
      std::tie(error, size) = co_await asio::async_write(stream, asio::buffer(bytes), kTuple);
    }
    error_code ignored;
    stream.socket().shutdown(asio::socket_base::shutdown_send, ignored);
    connection->close();
  }

  // Who reads a stream sends nothing: what comes is its end.
  static asio::awaitable<void> watch_end(ConnectionPtr connection) {
    std::array<char, 512> rest;
    error_code error;
    std::size_t size = 0;
    while (!error)
      std::tie(error, size) =
          co_await connection->stream.socket().async_read_some(asio::buffer(rest), kTuple);
    connection->close();
  }

  StatusReply reply_to(const http::request_parser<http::empty_body>& request, const error_code& error) {
    if (!request.is_header_done() &&
        (!error || error == http::error::header_limit || error == http::error::buffer_overflow))
      return plain(http::status::request_header_fields_too_large,
                   fmt::format("the header is longer than {} bytes\n", kMaxHeadBytes));
    if (!request.is_header_done())
      return plain(http::status::bad_request, fmt::format("not an HTTP request: {}\n", error.message()));
    const auto& head = request.get();
    if (head.method() != http::verb::get && head.method() != http::verb::head) {
      StatusReply out = plain(http::status::method_not_allowed, "GET and HEAD only\n");
      out.headers.emplace_back("Allow", "GET, HEAD");
      return out;
    }
    const auto text = [](const auto& field) { return std::string_view(field.data(), field.size()); };
    const std::string_view target = text(head.target());
    StatusRequest out{target.substr(0, target.find('?')),
                      {},
                      text(head[http::field::host]),
                      text(head[http::field::authorization]),
                      text(head[http::field::cookie])};
    if (out.path.size() < target.size()) out.query = target.substr(out.path.size() + 1);
    return page(out, head.method() == http::verb::head);
  }

  StatusReply page(const StatusRequest& request, bool head_only) {
    const Instant now = SteadyClock::now();
    const std::string path(request.path);
    if (const auto kept = kept_.find(path); kept != kept_.end() && now < kept->second.first)
      return kept->second.second;
    auto reply = answer_(request);
    if (!reply) return plain(http::status::not_found, "there are /healthz and /metrics\n");
    if (head_only) reply->stream = nullptr;
    // Only paths that exist: requests from outside add no entries.
    if (reply->fresh_for.count() > 0) kept_[path] = {now + reply->fresh_for, *reply};
    return *std::move(reply);
  }

  asio::io_context& loop_;
  StatusServerOptions options_;
  Answer answer_;
  Acceptor acceptor_;
  Descriptor ready_;                         // the Acceptor's, until stop()
  std::map<Id, ConnectionPtr> connections_;  // the oldest first
  std::map<std::string, std::pair<Instant, StatusReply>> kept_;
  Id next_id_ = 1;
  bool stopped_ = false;
};

StatusServer::StatusServer(boost::asio::io_context& loop, Listener listener, Answer answer,
                           const StatusServerOptions& options)
    : impl_(std::make_shared<Impl>(loop, std::move(listener), std::move(answer), options)) {
  impl_->wait_accept();
}

std::size_t StatusServer::num_streams() const {
  return impl_->count_streams();
}

StatusServer::~StatusServer() {
  stop();
}

void StatusServer::stop() {
  impl_->stop();
}

Result<StatusAddress> parse_status_address(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return invalid("{}: {}; HOST:PORT, or PORT for 127.0.0.1", text, why);
  };
  StatusAddress out;
  const auto colon = text.rfind(':');
  const std::string_view port = text.substr(colon + 1);  // npos + 1: all of it
  std::string_view host = colon == std::string_view::npos ? "" : text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    return wrong("an IPv6 address stands in brackets");
  out.host = host.empty() ? "127.0.0.1" : std::string(host);
  const auto number = parse_integer("port", port, 0, 65535);
  if (!number) return wrong("not a port from 0 to 65535");
  out.port = static_cast<std::uint16_t>(*number);
  return out;
}

Result<Listener> open_status_listener(std::string_view option, std::string_view text) {
  auto address = parse_status_address(text);
  if (!address) return fail(address.error().code, fmt::format("{}={}", option, address.error().message));
  auto listener = open_listener(address->host, address->port);
  if (!listener) return fail(option, std::move(listener).error());
  return listener;
}

}  // namespace muster::net
