// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/store_proxy.h"

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <unordered_map>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/link_room.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/peer_owner.h"
#include "rendezvous/net/refusal_log.h"

namespace muster::net {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;
using WorkerId = StoreRelay::WorkerId;
using State = StoreRelay::State;

constexpr std::size_t kReadBytes = 65536;

struct Client {
  Client(boost::asio::io_context& loop, UniqueFd from, std::string name)
      : descriptor(loop, from.release()), quiet(loop), peer(std::move(name)) {}

  Descriptor descriptor;
  boost::asio::steady_timer quiet;  // since an old client's ambiguous request
  std::string peer;
  std::string unread;  // input left alone while the relay is paused
  bool reading = false;
  bool writing = false;  // waits until the socket takes more
  std::size_t buffered_bytes = 0;
};

}  // namespace

// A node has hundreds of workers at most: Asio's waits serve here, the epoll set of net::Server is for a
// hundred thousand clients.
class StoreProxy::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& loop, std::int64_t generation, Uplink uplink,
       const StoreProxyOptions& options, const Log& log, Listener listener)
      : loop_(loop),
        options_(options),
        uplink_(std::move(uplink)),
        log_(log),
        refusals_(loop, log),
        port_(listener.port),
        acceptor_(std::move(listener)),
        listening_(loop, ::fcntl(acceptor_.listener().fd.get(), F_DUPFD_CLOEXEC, 0)),
        relay_(generation, options.relay),
        scratch_(kReadBytes, '\0') {}

  void stop() {
    if (std::exchange(stopped_, true)) return;
    boost::system::error_code ignored;
    listening_.close(ignored);
    acceptor_.close();
    clients_.clear();
    refusals_.stop();
    uplink_ = {};
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] const StoreRelay& relay() const { return relay_; }

  void linked(bool there) {
    if (there)
      relay_.connected();
    else
      relay_.disconnected();
    linked_ = there;
    settle();
  }

  Result<void> receive(const control::Message& message) {
    MUSTER_OK(relay_.receive(message));
    if (relay_.attached() && !std::exchange(accepting_, true)) wait_accept();
    settle();
    return {};
  }

  void drained() { settle(); }

 private:
  void wait_accept() {
    listening_.async_wait(Descriptor::wait_read, [weak = weak_from_this()](const auto& error) {
      const auto self = weak.lock();
      if (!self || error || self->stopped_) return;
      self->acceptor_.accept_some([&](UniqueFd fd) { self->admit(std::move(fd)); },
                                  [&](const std::string& reason) { self->refuse(Refusal::kSystem, reason); });
      self->settle();
      self->wait_accept();
    });
  }

  void admit(UniqueFd fd) {
    if (clients_.size() >= options_.max_connections) {
      refuse(Refusal::kLimit, fmt::format("closed {}: {} connections of workers are open, the limit",
                                          peer_name(fd.get()), clients_.size()));
      return;
    }
    std::string name = peer_name(fd.get());
    // Workers run as the agent's user; and who has no socket here is not on this host, whatever its address.
    if (const std::string defect = untrusted_user(fd.get()); !defect.empty())
      return refuse(Refusal::kAuthentication, fmt::format("closed {}: it is no worker: {}", name, defect));
    const WorkerId id = relay_.open();
    clients_.emplace(id, std::make_shared<Client>(loop_, std::move(fd), std::move(name)));
    read(id);
  }

  void refuse(Refusal kind, const std::string& reason) { refusals_.write(kind, reason); }

  [[nodiscard]] std::shared_ptr<Client> find(WorkerId id) const {
    const auto found = clients_.find(id);
    return found == clients_.end() ? nullptr : found->second;
  }

  void read(WorkerId id) {
    const auto client = find(id);
    if (!client || std::exchange(client->reading, true)) return;
    client->descriptor.async_wait(Descriptor::wait_read, [weak = weak_from_this(), id](const auto& error) {
      const auto self = weak.lock();
      if (!self || error || self->stopped_) return;
      self->on_readable(id);
      self->settle();
    });
  }

  void on_readable(WorkerId id) {
    const auto client = find(id);
    if (!client) return;
    client->reading = false;
    const ssize_t n = retry_eintr([&] {
      return ::recv(client->descriptor.native_handle(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    });
    if (n > 0) return feed(id, *client, {scratch_.data(), static_cast<std::size_t>(n)});
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return read(id);
    const std::string cause = n == 0 ? "it closed the connection" : errno_error("recv", errno).message;
    if (!relay_.between_requests(id))
      refuse(Refusal::kProtocol,
             fmt::format("closed worker {}: {} in the middle of a request", client->peer, cause));
    drop(id);
  }

  void feed(WorkerId id, Client& client, std::string_view input) {
    client.quiet.cancel();
    const State state = relay_.receive(id, input);
    client.unread.assign(input);
    after(id, client, state);
  }

  void after(WorkerId id, Client& client, State state) {
    if (state == State::kClose) return close(id, client);
    count(client, relay_.num_buffered_bytes(id) + client.unread.size());
    if (buffered_bytes_ > options_.max_buffered_bytes) {
      refuse(Refusal::kLimit,
             fmt::format("closed worker {}: what all workers have sent and not read is {} bytes, "
                         "the limit is {}",
                         client.peer, buffered_bytes_, options_.max_buffered_bytes));
      return drop(id);
    }
    if (state == State::kPaused) return;
    read(id);
    if (state == State::kUndecided) wait_quiet(id, client);
  }

  void wait_quiet(WorkerId id, Client& client) {
    client.quiet.expires_after(options_.legacy_quiet_time);
    client.quiet.async_wait([weak = weak_from_this(), id](const auto& error) {
      const auto self = weak.lock();
      const auto found = self && !error && !self->stopped_ ? self->find(id) : nullptr;
      if (!found) return;
      self->after(id, *found, self->relay_.settle(id));
      self->settle();
    });
  }

  void close(WorkerId id, const Client& client) {
    refuse(Refusal::kProtocol, fmt::format("closed worker {}: {}", client.peer, relay_.reason(id)));
    drop(id);
  }

  void drop(WorkerId id) {
    const auto found = clients_.find(id);
    count(*found->second, 0);
    clients_.erase(found);
    relay_.close(id);
  }

  void count(Client& client, std::size_t now) {
    buffered_bytes_ += now - std::exchange(client.buffered_bytes, now);  // modulo 2^64: it may be less
  }

  // Brings what has just happened to the workers and to the coordinator.
  void settle() {
    if (stopped_) return;
    for (auto touched = relay_.take_touched(); !touched.empty(); touched = relay_.take_touched())
      for (const WorkerId id : touched)
        if (const auto client = find(id)) serve(id, *client);
    control::Message message;
    while (linked_ && uplink_.unsent_bytes() < kLinkRoomBytes && relay_.next(message)) uplink_.send(message);
  }

  // It has answers, may send on, or is to be closed.
  void serve(WorkerId id, Client& client) {
    if (!flush(id, client)) return;
    if (!relay_.reason(id).empty()) return close(id, client);
    if (client.reading) return;
    const std::string input = std::exchange(client.unread, {});
    feed(id, client, input);
  }

  // False: it is gone.
  bool flush(WorkerId id, Client& client) {
    if (client.writing) return true;
    while (true) {
      const std::string_view bytes = relay_.answers(id);
      if (bytes.empty()) return true;
      const ssize_t n = retry_eintr([&] {
        return ::send(client.descriptor.native_handle(), bytes.data(), bytes.size(),
                      MSG_NOSIGNAL | MSG_DONTWAIT);
      });
      if (n > 0) {
        relay_.consumed(id, static_cast<std::size_t>(n));
        continue;
      }
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        drop(id);
        return false;
      }
      client.writing = true;
      client.descriptor.async_wait(Descriptor::wait_write, [weak = weak_from_this(), id](const auto& error) {
        const auto self = weak.lock();
        const auto found = self && !error && !self->stopped_ ? self->find(id) : nullptr;
        if (!found) return;
        found->writing = false;
        (void)self->flush(id, *found);
        self->settle();
      });
      return true;
    }
  }

  boost::asio::io_context& loop_;
  StoreProxyOptions options_;
  Uplink uplink_;
  Log log_;
  RefusalLog refusals_;
  std::uint16_t port_;
  Acceptor acceptor_;
  Descriptor listening_;  // the acceptor's socket once more, for the loop
  StoreRelay relay_;
  std::unordered_map<WorkerId, std::shared_ptr<Client>> clients_;
  std::string scratch_;
  std::size_t buffered_bytes_ = 0;
  bool linked_ = false;
  bool accepting_ = false;
  bool stopped_ = false;
};

StoreProxy::StoreProxy(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

StoreProxy::~StoreProxy() {
  stop();
}

Result<std::unique_ptr<StoreProxy>> StoreProxy::listen(boost::asio::io_context& loop, std::int64_t generation,
                                                       Uplink uplink, const StoreProxyOptions& options,
                                                       const Log& log) {
  MUSTER_TRY(Listener listener, open_listener("127.0.0.1", 0));
  try {
    auto impl =
        std::make_shared<Impl>(loop, generation, std::move(uplink), options, log, std::move(listener));
    return std::unique_ptr<StoreProxy>(new StoreProxy(std::move(impl)));
  } catch (const boost::system::system_error& error) {
    return fail(ErrorCode::kIo, fmt::format("event loop of the store proxy: {}", error.what()));
  }
}

std::uint16_t StoreProxy::port() const {
  return impl_->port();
}
void StoreProxy::linked(bool there) {
  impl_->linked(there);
}
Result<void> StoreProxy::receive(const control::Message& message) {
  return impl_->receive(message);
}
void StoreProxy::drained() {
  impl_->drained();
}
bool StoreProxy::attached() const {
  return impl_->relay().attached();
}
void StoreProxy::stop() {
  impl_->stop();
}
const StoreRelay& StoreProxy::relay() const {
  return impl_->relay();
}

}  // namespace muster::net
