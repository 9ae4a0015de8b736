// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/client.h"

#include <algorithm>
#include <exception>
#include <netinet/tcp.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/impl/src.hpp>  // its functions, as net/asio_functions.cc has Asio's own
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/net/awaitable.h"
#include "rendezvous/net/dial.h"

namespace muster::etcd {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

using net::kTuple;
constexpr std::size_t kMaxIdle = 4;
constexpr std::uint32_t kMaxHeadBytes =
    16384;  // in all: Beast's own limit is for each piece that it is given
/// Of a response, and of an update of a watch. etcd takes requests of 1.5 MiB unless it is told otherwise.
constexpr std::size_t kMaxBodyBytes = std::size_t{16} << 20;

using Outcome = std::tuple<error_code, std::size_t>;
using Request = http::request<http::string_body>;

struct Parser : http::response_parser<http::string_body> {
  std::size_t head_bytes = 0;

  Parser() {
    header_limit(kMaxHeadBytes);
    body_limit(kMaxBodyBytes);
  }
};

// One connection to a member, with or without TLS. Every step has the deadline of tcp_stream.
struct Connection {
  Connection(asio::io_context& loop, const Settings::Member& member)
      : host(member.host), port(member.port), endpoint(net::endpoint_text(host, port)), stream(loop) {}

  asio::awaitable<Result<void>> open(std::optional<tls::Context> context, std::size_t rotation,
                                     Instant deadline) {
    const auto dialed = co_await net::dial(stream.socket(), host, port, rotation, deadline);
    if (!dialed) {
      // dial() says kNotFound of a name; of etcd that would mean a lease.
      Error error = dialed.error();
      if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kPeerGone;
      co_return fail(std::move(error));
    }
    // A watch waits for ever, also for a host that lost its power and a connection that a NAT has forgotten.
    const auto set = [this](int level, int name, int value) {
      ::setsockopt(stream.socket().native_handle(), level, name, &value, sizeof value);
    };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set(IPPROTO_TCP, TCP_KEEPCNT, 3);
    if (!context) co_return Result<void>{};
    tls_context.emplace(context->share());
    tls.emplace(stream, *tls_context);
    tls::expect_server(tls->native_handle(), host);
    stream.expires_at(deadline);
    const auto [error] = co_await tls->async_handshake(asio::ssl::stream_base::client, kTuple);
    if (error == beast::error::timeout || (error && error.category() != asio::error::get_ssl_category()))
      co_return fail(broken("TLS handshake with", error));
    if (error)
      co_return fail(ErrorCode::kMismatch, "TLS with {}: {}", endpoint,
                     tls::rejected_certificate(tls->native_handle()).value_or(error.message()));
    co_return Result<void>{};
  }

  asio::awaitable<Result<void>> post(std::string path, std::string body, bool watch, Instant deadline) {
    Request request(http::verb::post, path, 11);
    request.set(http::field::host, endpoint);
    request.set(http::field::content_type, "application/json");
    // gRPC's metadata as etcd's gateway takes it (clientv3.WithRequireLeader): a member that is cut off from
    // its cluster ends the watch after three election time-outs. Without it a watch there is silent for ever.
    if (watch) request.set("Grpc-Metadata-hasleader", "true");
    request.body() = std::move(body);
    request.prepare_payload();
    stream.expires_at(deadline);
    const auto [error, size] =
        co_await on_stream([&](auto& to) { return http::async_write(to, request, kTuple); });
    if (error) co_return fail(broken("send to", error));
    co_return Result<void>{};
  }

  // What comes next of a response.
  asio::awaitable<Result<void>> receive(Parser& parser) {
    const bool in_head = !parser.is_header_done();
    const auto [error, size] =
        co_await on_stream([&](auto& from) { return http::async_read_some(from, buffer, parser, kTuple); });
    if (error) co_return fail(broken("receive from", error));
    if (in_head) parser.head_bytes += size;
    if (!parser.is_header_done() && parser.head_bytes > kMaxHeadBytes)
      co_return fail(broken("receive from", http::error::header_limit));
    co_return Result<void>{};
  }

  asio::awaitable<Outcome> on_stream(const auto& operation) {
    return tls ? operation(*tls) : operation(stream);
  }

  [[nodiscard]] Error broken(std::string_view doing, const error_code& error) const {
    const auto is = [&](auto code) { return error == code; };
    if (is(beast::error::timeout))
      return {ErrorCode::kTimeout, fmt::format("{} {}: no answer in time", doing, endpoint)};
    if (is(http::error::body_limit))
      return {ErrorCode::kProtocol,
              fmt::format("{}: an HTTP response longer than {} bytes", endpoint, kMaxBodyBytes)};
    if (is(http::error::header_limit) || is(http::error::buffer_overflow))
      return {ErrorCode::kProtocol, fmt::format("{}: an HTTP response with a header longer than {} bytes",
                                                endpoint, kMaxHeadBytes)};
    if (error.category() == make_error_code(http::error::bad_version).category() &&
        !is(http::error::end_of_stream) && !is(http::error::partial_message))
      return {ErrorCode::kProtocol, fmt::format("{}: not an HTTP response: {}", endpoint, error.message())};
    if (error.category() == asio::error::get_ssl_category())  // as of a certificate that etcd does not accept
      return {ErrorCode::kMismatch, fmt::format("TLS with {}: {}", endpoint, error.message())};
    return {ErrorCode::kPeerGone, fmt::format("{} {}: {}", doing, endpoint, error.message())};
  }

  const std::string host;
  const std::uint16_t port;
  const std::string endpoint;  // "10.0.0.4:2379"
  beast::tcp_stream stream;
  std::optional<asio::ssl::context> tls_context;
  std::optional<asio::ssl::stream<beast::tcp_stream&>> tls;
  beast::flat_buffer buffer{std::size_t{2} * kMaxHeadBytes};
  bool answered = false;  // the last request
};
using ConnectionPtr = std::shared_ptr<Connection>;

// What another member may answer better. Limits and leases are the cluster's.
bool may_differ_elsewhere(ErrorCode code) {
  return code == ErrorCode::kPeerGone || code == ErrorCode::kTimeout || code == ErrorCode::kIo ||
         code == ErrorCode::kProtocol || code == ErrorCode::kMismatch;
}

// What is expected to go wrong comes as a Result.
Error error_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return {ErrorCode::kFailed, fmt::format("a request to etcd: {}", error.what())};
  }
}

Error at(const Connection& connection, const Error& error) {
  return {error.code, fmt::format("{}: {}", connection.endpoint, error.message)};
}

}  // namespace

std::string member_list(const Settings& settings) {
  std::string out;
  for (const auto& member : settings.members)
    out += fmt::format("{}{}", out.empty() ? "" : ",", net::endpoint_text(member.host, member.port));
  return out;
}

class Client::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& loop, const Settings& settings)
      : loop_(loop),
        settings_(settings),
        // Of one member: a silent one leaves time for another within the lease.
        timeout_(std::clamp(Millis(settings.lease_ttl_seconds * 1000 / 4), Millis(1000), Millis(3000))) {}

  void request(std::string path, std::string body, std::function<void(Result<std::string>)> done) {
    asio::co_spawn(loop_, try_members(std::move(path), std::move(body)),
                   [self = shared_from_this(), done = std::move(done)](const std::exception_ptr& exception,
                                                                       Result<std::string> response) {
                     if (!self->closed_) done(exception ? fail(error_of(exception)) : std::move(response));
                   });
  }

  void watch(Watch watch) {
    stop_watch();
    watching_ = make_connection();
    asio::co_spawn(loop_, run_watch(watching_, watch, current_),
                   [self = shared_from_this(), connection = watching_, member = current_,
                    on_end = watch.on_end](const std::exception_ptr& exception, const Error& error) {
                     connection->stream.close();
                     if (self->watching_ != connection) return;
                     self->watching_.reset();
                     if (self->current_ == member) ++self->current_;
                     on_end(exception ? error_of(exception) : error);
                   });
  }

  void stop_watch() {
    if (const auto connection = std::exchange(watching_, {})) connection->stream.close();
  }

  void close() {
    closed_ = true;
    stop_watch();
    for (const auto& weak : connections_)
      if (const auto connection = weak.lock()) connection->stream.close();
  }

 private:
  [[nodiscard]] const Settings::Member& member() const {
    return settings_.members[current_ % settings_.members.size()];
  }
  // A name with several addresses: another one first in each round of the members.
  [[nodiscard]] std::size_t rotation(std::size_t member) const { return member / settings_.members.size(); }

  // The body of a response with status 200.
  asio::awaitable<Result<std::string>> try_members(std::string path, std::string body) {
    const auto self = shared_from_this();
    Result<std::string> out = fail(ErrorCode::kCancelled, "closed");
    for (std::size_t i = 0; i < settings_.members.size() && !closed_; ++i) {
      const std::size_t asked = current_;
      auto response = co_await ask_member(path, body);
      if (!response && i > 0) {
        Error& last = response.error();
        // One member's certificate, or what stands before it, is no verdict on the others.
        if (last.code == ErrorCode::kMismatch) last.code = out.error().code;
        last.message = fmt::format("{}; {}", out.error().message, last.message);
      }
      out = std::move(response);
      if (out || !may_differ_elsewhere(out.error().code)) break;
      if (closed_ || current_ != asked) continue;
      ++current_;
      // The watch of that member ends by an error of its own.
      if (watching_ && settings_.members.size() > 1) watching_->stream.close();
    }
    co_return out;
  }

  asio::awaitable<Result<std::string>> ask_member(std::string path, std::string body) {
    const Instant deadline = SteadyClock::now() + timeout_;
    const std::size_t asked = current_;
    if (!idle_.empty()) {
      const ConnectionPtr kept = std::exchange(idle_.back(), {});
      idle_.pop_back();
      if (kept->endpoint == net::endpoint_text(member().host, member().port)) {
        auto response = co_await exchange(kept, path, body, deadline);
        // etcd may have closed it while it was not used.
        if (response || response.error().code != ErrorCode::kPeerGone || kept->answered || closed_)
          co_return response;
      }
    }
    const ConnectionPtr connection = make_connection();
    const auto open = co_await connection->open(settings_.tls, rotation(asked), deadline);
    if (!open) co_return fail(open.error());
    co_return co_await exchange(connection, std::move(path), std::move(body), deadline);
  }

  asio::awaitable<Result<std::string>> exchange(ConnectionPtr connection, std::string path, std::string body,
                                                Instant deadline) {
    connection->answered = false;
    const auto sent = co_await connection->post(std::move(path), std::move(body), false, deadline);
    if (!sent) co_return fail(sent.error());
    Parser parser;
    while (!parser.is_done()) {
      const auto received = co_await connection->receive(parser);
      if (!received) co_return fail(received.error());
    }
    connection->answered = true;
    // What comes after the end was not asked for.
    if (parser.keep_alive() && connection->buffer.size() == 0 && !closed_ && idle_.size() < kMaxIdle)
      idle_.push_back(connection);
    const int status = parser.get().result_int();
    if (status != 200) co_return fail(at(*connection, error_of_response(status, parser.get().body())));
    co_return std::move(parser.get().body());
  }

  asio::awaitable<Error> run_watch(ConnectionPtr connection, Watch watch, std::size_t asked) {
    const Instant deadline = SteadyClock::now() + timeout_;
    const auto open = co_await connection->open(settings_.tls, rotation(asked), deadline);
    if (!open) co_return open.error();
    const auto sent = co_await connection->post(
        std::string(kWatchPath), watch_request(watch.key, watch.end, watch.from), true, deadline);
    if (!sent) co_return sent.error();
    Parser parser;
    WatchStream updates(kMaxBodyBytes);
    while (!parser.is_done()) {
      const auto received = co_await connection->receive(parser);
      if (!received) co_return received.error();
      if (!parser.is_header_done() || parser.get().result_int() != 200) continue;
      const auto news = updates.receive(std::exchange(parser.get().body(), {}));
      if (!news) co_return at(*connection, news.error());
      parser.body_limit(kMaxBodyBytes);  // from here on: Beast counts down
      for (const WatchUpdate& update : *news) {
        // etcd says at once that the watch exists, and then nothing as long as nothing changes.
        if (update.created) connection->stream.expires_never();
        if (watching_ == connection) watch.on_update(update);
        if (watching_ != connection) co_return Error{ErrorCode::kCancelled, "stopped"};
      }
    }
    if (const int status = parser.get().result_int(); status != 200)
      co_return at(*connection, error_of_response(status, parser.get().body()));
    co_return Error{ErrorCode::kPeerGone, fmt::format("{} has ended the watch", connection->endpoint)};
  }

  ConnectionPtr make_connection() {
    std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
    auto out = std::make_shared<Connection>(loop_, member());
    connections_.push_back(out);
    return out;
  }

  asio::io_context& loop_;
  const Settings settings_;
  const Millis timeout_;
  std::size_t current_ = 0;  // the member to ask, modulo their number
  std::vector<ConnectionPtr> idle_;
  std::vector<std::weak_ptr<Connection>> connections_;  // all, idle ones too
  ConnectionPtr watching_;
  bool closed_ = false;
};

Client::Client(asio::io_context& loop, const Settings& settings)
    : impl_(std::make_shared<Impl>(loop, settings)) {}
Client::~Client() {
  impl_->close();
}

void Client::request(std::string_view path, std::string body, std::function<void(Result<std::string>)> done) {
  impl_->request(std::string(path), std::move(body), std::move(done));
}
void Client::watch(Watch watch) {
  impl_->watch(std::move(watch));
}
void Client::stop_watch() {
  impl_->stop_watch();
}

}  // namespace muster::etcd
