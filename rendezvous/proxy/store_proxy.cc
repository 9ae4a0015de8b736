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
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/peer_owner.h"
#include "rendezvous/net/rejection_log.h"
#include "rendezvous/net/send_limit.h"

namespace muster::net {
namespace {

using Descriptor = boost::asio::posix::stream_descriptor;
using Number = RequestForwarder::Number;
using State = RequestForwarder::State;

constexpr std::size_t kProxyReadBytes = 65536;
constexpr std::size_t kMaxWorkerConnections = 65536;
// Unfinished requests, unread answers and what the coordinator has not taken, of all workers, those that have
// gone among them; the worker that goes beyond is closed.
constexpr std::size_t kMaxWorkerBytes = std::size_t{4} << 30;
constexpr Millis kLegacyQuietTime{50};  // see ServerOptions

struct Client {
  Client(boost::asio::io_context& loop, UniqueFd from, std::string name)
      : descriptor(loop, from.release()), quiet(loop), peer(std::move(name)) {}

  Descriptor descriptor;
  LoopTimer quiet;  // since an old client's ambiguous request
  std::string peer;
  std::string unread;  // input left alone while the forwarder is paused
  bool reading = false;
  bool writing = false;  // waits until the socket takes more
  std::size_t buffered_bytes = 0;
};

// A node has hundreds of workers at most: Asio's waits serve here, the epoll set of net::Server is for a
// hundred thousand clients.
class WorkerStoreProxy final : public StoreProxy {
 public:
  WorkerStoreProxy(boost::asio::io_context& loop, std::int64_t generation, Uplink uplink, bool own_user_only,
                   const Log& log, Listener listener)
      : loop_(loop),
        own_user_only_(own_user_only),
        uplink_(std::move(uplink)),
        rejections_(loop, log),
        acceptor_(std::move(listener)),
        listening_(loop, ::fcntl(acceptor_.listener().fds.front().get(), F_DUPFD_CLOEXEC, 0)),
        requests_(generation),
        scratch_(kProxyReadBytes, '\0') {}

  [[nodiscard]] std::uint16_t port() const override { return acceptor_.listener().port; }
  [[nodiscard]] const RequestForwarder& requests() const override { return requests_; }

  void linked(bool there) override {
    if (there)
      requests_.connected();
    else
      requests_.disconnected();
    bring();
  }

  Result<void> receive(const control::Message& message) override {
    MUSTER_OK(requests_.receive(message));
    if (requests_.attached() && !std::exchange(accepting_, true)) wait_accept();
    bring();
    return {};
  }

  void drained() override { bring(); }

 private:
  // Brings what has just happened to the workers and to the coordinator.
  void bring() {
    for (auto ready = requests_.take_ready(); !ready.empty(); ready = requests_.take_ready())
      for (const Number id : ready) serve(id);
    while (uplink_.unsent_bytes() < kSendLimitBytes && requests_.next(message_)) uplink_.send(message_);
  }

  // `handle` and then bring(), unless there is an error or this has gone.
  template <class Handle>
  auto on_event(Handle handle) {
    return lifetime_.guard([this, handle](const auto& error) {
      if (error) return;
      handle();
      bring();
    });
  }

  void wait_accept() {
    listening_.async_wait(Descriptor::wait_read, on_event([this] {
                            acceptor_.accept_some([&](UniqueFd fd) { admit(std::move(fd)); },
                                                  [&](const std::string& reason) {
                                                    rejections_.write(Rejection::kSystem, reason);
                                                  });
                            wait_accept();
                          }));
  }

  void admit(UniqueFd fd) {
    std::string name = peer_name(fd.get());
    if (clients_.size() >= kMaxWorkerConnections)
      return rejections_.write(
          Rejection::kLimit,
          fmt::format("closed {}: {} connections of workers are open, the limit", name, clients_.size()));
    // The kernel may be told to let other hosts reach 127.0.0.1.
    std::string defect = peer_is_on_this_host(fd.get()) ? "" : "it is not on this host";
    if (defect.empty() && own_user_only_) defect = untrusted_user(fd.get());
    if (!defect.empty())
      return rejections_.write(Rejection::kAuthentication,
                               fmt::format("closed {}: it is no worker: {}", name, defect));
    const Number id = requests_.open();
    clients_.emplace(id, std::make_unique<Client>(loop_, std::move(fd), std::move(name)));
    read(id);
  }

  [[nodiscard]] Client* find(Number id) const {
    const auto found = clients_.find(id);
    return found == clients_.end() ? nullptr : found->second.get();
  }

  void read(Number id) {
    Client& client = *find(id);
    if (!std::exchange(client.reading, true))
      client.descriptor.async_wait(Descriptor::wait_read, on_event([this, id] { on_readable(id); }));
  }

  void on_readable(Number id) {
    Client* client = find(id);
    if (client == nullptr) return;
    client->reading = false;
    const ssize_t n = retry_eintr([&] {
      return ::recv(client->descriptor.native_handle(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    });
    if (n > 0) return feed(id, *client, {scratch_.data(), static_cast<std::size_t>(n)});
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return read(id);
    const std::string cause = n == 0 ? "it closed the connection" : errno_error("recv", errno).message;
    if (!requests_.between_requests(id))
      rejections_.write(Rejection::kProtocol,
                        fmt::format("closed worker {}: {} in the middle of a request", client->peer, cause));
    drop(id);
  }

  void feed(Number id, Client& client, std::string_view input) {
    client.quiet.cancel();
    const State state = requests_.receive(id, input);
    client.unread.assign(input);
    after(id, client, state);
  }

  void after(Number id, Client& client, State state) {
    if (state == State::kClose) return close(id, client);
    count(client, requests_.num_buffered_bytes(id) + client.unread.size());
    const std::size_t all = buffered_bytes_ + requests_.num_closing_bytes();
    if (all > kMaxWorkerBytes) {
      rejections_.write(Rejection::kLimit,
                        fmt::format("closed worker {}: what all workers have sent and not read is {} bytes, "
                                    "the limit is {}",
                                    client.peer, all, kMaxWorkerBytes));
      return drop(id);
    }
    if (state == State::kPaused) return;
    read(id);
    if (state == State::kUndecided) wait_quiet(id, client);
  }

  void wait_quiet(Number id, Client& client) {
    client.quiet.expires_after(kLegacyQuietTime);
    client.quiet.async_wait(on_event([this, id] {
      if (Client* found = find(id)) after(id, *found, requests_.settle(id));
    }));
  }

  void close(Number id, const Client& client) {
    rejections_.write(Rejection::kProtocol,
                      fmt::format("closed worker {}: {}", client.peer, requests_.reason(id)));
    drop(id);
  }

  void drop(Number id) {
    const auto found = clients_.find(id);
    count(*found->second, 0);
    clients_.erase(found);
    requests_.close(id);
  }

  void count(Client& client, std::size_t now) {
    buffered_bytes_ += now - std::exchange(client.buffered_bytes, now);  // modulo 2^64: it may be less
  }

  // It has answers, may send on, or is to be closed.
  void serve(Number id) {
    Client* client = find(id);
    if (client == nullptr || !flush(id, *client)) return;
    if (!requests_.reason(id).empty()) return close(id, *client);
    count(*client, requests_.num_buffered_bytes(id) + client->unread.size());
    if (client->reading) return;
    const std::string input = std::exchange(client->unread, {});
    feed(id, *client, input);
  }

  // False: it is gone.
  bool flush(Number id, Client& client) {
    while (!client.writing) {
      const std::string_view bytes = requests_.answers(id);
      if (bytes.empty()) return true;
      const ssize_t n = retry_eintr([&] {
        return ::send(client.descriptor.native_handle(), bytes.data(), bytes.size(),
                      MSG_NOSIGNAL | MSG_DONTWAIT);
      });
      if (n > 0) {
        requests_.consumed(id, static_cast<std::size_t>(n));
      } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        drop(id);
        return false;
      } else {
        client.writing = true;
        client.descriptor.async_wait(Descriptor::wait_write, on_event([this, id] {
                                       if (Client* found = find(id)) {
                                         found->writing = false;
                                         serve(id);
                                       }
                                     }));
      }
    }
    return true;
  }

  boost::asio::io_context& loop_;
  const bool own_user_only_;
  Uplink uplink_;
  RejectionLog rejections_;
  Acceptor acceptor_;
  Descriptor listening_;  // the acceptor's socket once more, for the loop
  RequestForwarder requests_;
  control::Message message_;  // used again and again, with its buffer
  std::unordered_map<Number, std::unique_ptr<Client>> clients_;
  std::string scratch_;
  std::size_t buffered_bytes_ = 0;
  bool accepting_ = false;
  Lifetime lifetime_;
};

}  // namespace

Result<std::unique_ptr<StoreProxy>> StoreProxy::listen(boost::asio::io_context& loop, std::int64_t generation,
                                                       Uplink uplink, bool own_user_only, const Log& log) {
  MUSTER_TRY(Listener listener, open_listener("127.0.0.1", 0));
  try {
    return std::make_unique<WorkerStoreProxy>(loop, generation, std::move(uplink), own_user_only, log,
                                              std::move(listener));
  } catch (const boost::system::system_error& error) {
    return fail(ErrorCode::kIo, "event loop of the store proxy: {}", error.what());
  }
}

}  // namespace muster::net
