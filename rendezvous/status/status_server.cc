// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/status/status_server.h"

#include <array>
#include <charconv>
#include <map>
#include <sys/socket.h>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/http_request.h"

namespace muster::net {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;

// After the answer: a close with something unread would be a reset, which may overtake the answer.
constexpr Millis kDrainPatience{1'000};

struct Connection {
  Connection(boost::asio::io_context& loop, UniqueFd fd) : descriptor(loop, fd.release()), timer(loop) {}

  Descriptor descriptor;
  boost::asio::steady_timer timer;
  HttpRequest request;
  std::string out;
  std::size_t sent = 0;
  enum class Stage { kRequest, kReply, kDrain } stage = Stage::kRequest;
};

}  // namespace

class StatusServer::Impl final : public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& loop, Listener listener, Answer answer, const StatusServerOptions& options)
      : loop_(loop),
        options_(options),
        answer_(std::move(answer)),
        acceptor_(std::move(listener)),
        ready_(loop, acceptor_.listener().fd.get()) {}

  void wait_accept() {
    ready_.async_wait(Descriptor::wait_read, [weak = weak_from_this()](const auto& error) {
      const auto self = weak.lock();
      if (!self || error || self->stopped_) return;
      self->acceptor_.accept_some([&](UniqueFd fd) { self->admit(std::move(fd)); },
                                  [](const std::string&) {});
      self->wait_accept();
    });
  }

  void stop() {
    if (std::exchange(stopped_, true)) return;
    connections_.clear();
    (void)ready_.release();
    acceptor_.close();
  }

 private:
  using Stage = Connection::Stage;
  using Id = std::uint64_t;

  void admit(UniqueFd fd) {
    if (connections_.size() >= options_.max_connections && !drop_one()) return;
    const Id id = next_id_++;
    connections_.emplace(id, std::make_shared<Connection>(loop_, std::move(fd)));
    arm(id, options_.request_timeout);
    // What asks with its first packet is answered at once, however many others only connect.
    on_readable(id);
  }

  // The oldest that has not asked yet, or has its answer and does not go; false: all are being answered.
  bool drop_one() {
    for (const auto& [id, connection] : connections_)
      if (connection->stage != Stage::kReply) return connections_.erase(id) > 0;
    return false;
  }

  void arm(Id id, Millis patience) {
    const auto& connection = connections_.at(id);
    connection->timer.expires_after(patience);
    connection->timer.async_wait([weak = weak_from_this(), id](const auto& error) {
      if (const auto self = weak.lock(); self && !error) self->time_is_up(id);
    });
  }

  void time_is_up(Id id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    // Else the kernel would go on offering the rest to who does not read.
    const linger reset{1, 0};
    if (found->second->stage == Stage::kReply)
      ::setsockopt(found->second->descriptor.native_handle(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    connections_.erase(found);
  }

  void wait(Id id, Descriptor::wait_type what) {
    connections_.at(id)->descriptor.async_wait(what, [weak = weak_from_this(), id, what](const auto& error) {
      const auto self = weak.lock();
      if (!self || error || !self->connections_.contains(id)) return;
      what == Descriptor::wait_write ? self->write(id) : self->on_readable(id);
    });
  }

  void on_readable(Id id) {
    const auto connection = connections_.at(id);  // survives its own removal
    std::array<char, 4096> bytes;
    const ssize_t n = retry_eintr([&] {
      return ::recv(connection->descriptor.native_handle(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    });
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return wait(id, Descriptor::wait_read);
    if (n <= 0) {
      connections_.erase(id);
      return;
    }
    if (connection->stage == Stage::kDrain) return wait(id, Descriptor::wait_read);
    const auto whole = connection->request.receive({bytes.data(), static_cast<std::size_t>(n)});
    if (whole && !*whole) return wait(id, Descriptor::wait_read);
    connection->out = whole ? reply_to(connection->request) : complaint(whole.error());
    connection->stage = Stage::kReply;
    arm(id, options_.reply_timeout);
    write(id);
  }

  static std::string complaint(const Error& error) {
    return http_reply(error.code == ErrorCode::kExhausted ? 431 : 400, "text/plain; charset=utf-8",
                      error.message + "\n", {}, false);
  }

  std::string reply_to(const HttpRequest& request) {
    constexpr std::string_view kPlain = "text/plain; charset=utf-8";
    const bool head_only = request.method() == "HEAD";
    if (request.method() != "GET" && !head_only)
      return http_reply(405, kPlain, "GET and HEAD only\n", "Allow: GET, HEAD\r\n", false);
    const std::string path(request.path());
    const Instant now = SteadyClock::now();
    if (const auto kept = kept_.find(path); kept != kept_.end() && now < kept->second.first)
      return http_reply(kept->second.second.status, kept->second.second.type, kept->second.second.body, {},
                        head_only);
    const auto reply = answer_(path);
    if (!reply) return http_reply(404, kPlain, "there are /healthz and /metrics\n", {}, head_only);
    // Only paths that there are: a stranger makes no entries.
    if (reply->fresh_for.count() > 0) kept_[path] = {now + reply->fresh_for, *reply};
    return http_reply(reply->status, reply->type, reply->body, {}, head_only);
  }

  void write(Id id) {
    const auto connection = connections_.at(id);
    const int fd = connection->descriptor.native_handle();
    while (connection->sent < connection->out.size()) {
      const std::string_view left = std::string_view(connection->out).substr(connection->sent);
      const ssize_t n =
          retry_eintr([&] { return ::send(fd, left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL); });
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return wait(id, Descriptor::wait_write);
      if (n < 0) {
        connections_.erase(id);
        return;
      }
      connection->sent += static_cast<std::size_t>(n);
    }
    ::shutdown(fd, SHUT_WR);
    connection->stage = Stage::kDrain;
    connection->out = {};
    arm(id, kDrainPatience);
    wait(id, Descriptor::wait_read);
  }

  boost::asio::io_context& loop_;
  StatusServerOptions options_;
  Answer answer_;
  Acceptor acceptor_;
  Descriptor ready_;                                       // the Acceptor's, until stop()
  std::map<Id, std::shared_ptr<Connection>> connections_;  // the oldest first
  std::map<std::string, std::pair<Instant, StatusReply>> kept_;
  Id next_id_ = 1;
  bool stopped_ = false;
};

StatusServer::StatusServer(boost::asio::io_context& loop, Listener listener, Answer answer,
                           const StatusServerOptions& options)
    : impl_(std::make_shared<Impl>(loop, std::move(listener), std::move(answer), options)) {
  impl_->wait_accept();
}

StatusServer::~StatusServer() {
  stop();
}

void StatusServer::stop() {
  impl_->stop();
}

Result<StatusAddress> parse_status_address(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {}; HOST:PORT, or PORT for 127.0.0.1", text, why));
  };
  StatusAddress out;
  const auto colon = text.rfind(':');
  std::string_view port = text;
  std::string_view host;
  if (colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  else if (host.find(':') != std::string_view::npos)
    return wrong("an IPv6 address stands in brackets");
  out.host = host.empty() ? "127.0.0.1" : std::string(host);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (port.empty() || error != std::errc{} || end != port.data() + port.size())
    return wrong("not a port from 0 to 65535");
  return out;
}

Result<Listener> open_status_listener(std::string_view option, std::string_view text) {
  auto address = parse_status_address(text);
  if (!address) return fail(address.error().code, fmt::format("{}={}", option, address.error().message));
  auto listener = open_listener(address->host, address->port);
  if (!listener) return fail(std::string(option), std::move(listener).error());
  return listener;
}

}  // namespace muster::net
