// SPDX-License-Identifier: Apache-2.0
// net::Server: a TCPStore server on the caller's event loop. musterd, the launcher and StoreServer run this
// class. One loop, one thread: create, call and destroy it on the thread that runs `loop`, or while that does
// not run; the loop outlives it. It keeps the loop busy until stop(). Failure: a client that sends what the
// protocol does not allow, or does not read its answers, is closed and logged with its address and the
// reason; no other client notices. Clients may be PyTorch's of any version, or muster::TcpStore.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/base/log.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/rejection_log.h"
#include "rendezvous/store/session.h"

namespace muster::net {

class StateLog;

struct ServerOptions {
  std::string host;        ///< address or name of this host to listen on; empty: every address, IPv6 and IPv4
  std::uint16_t port = 0;  ///< 0: the kernel chooses; port() tells
  int listen_fd = -1;      ///< >= 0: an inherited, bound socket to listen with instead; the server closes it
  std::shared_ptr<Listener> listener = {};  ///< what to listen with instead, which the server takes
  /// False: a busy port's error does not name its owner, see open_listener().
  bool name_port_owner = true;
  SessionLimits limits;
  std::size_t max_connections = 200'000;  ///< more are refused
  /// Of the requests that clients have begun and the answers they have not read, all clients together; beyond
  /// it the client with the most is closed.
  std::size_t max_buffered_bytes = std::size_t{4} << 30;
  /// Whose clients are served; others are closed with a logged reason. TCPStore has no authentication.
  enum class Clients {
    kAll,
    kThisHost,         ///< see peer_is_on_this_host()
    kUsersOfThisHost,  ///< likewise, where the peer is root's, this process's user's, or one of
                       ///< allowed_users'
  };
  Clients clients = Clients::kAll;
  std::vector<uid_t> allowed_users = {};
  /// How long a connection may say nothing that is not served the store, but may be the other protocol's.
  std::chrono::milliseconds first_byte_timeout = std::chrono::seconds(10);
  /// A client with unread answers that takes not one byte of them for so long is closed.
  std::chrono::milliseconds slow_reader_timeout = std::chrono::minutes(1);
  /// How long an old client's byte 8 with a key may stay alone before it is taken for DELETE_KEY of PyTorch
  /// <= 2.0.
  std::chrono::milliseconds legacy_quiet_time{50};
  /// Another protocol at this port: the first bytes of its connections, and who takes them, with what was
  /// read and the peer's name. None of the bytes begins a TCPStore request.
  std::string other_first_bytes = {};
  std::function<void(UniqueFd, std::string_view, std::string)> hand_over = {};
  /// Keys of a torchrun job are dropped so long after its last agent has gone; nothing: they are kept.
  std::optional<std::chrono::milliseconds> keep_torchrun_jobs = {};
  /// Keeps the keys and queues, and no change is answered before it is on the disk; nothing: they end with
  /// the server.
  std::shared_ptr<StateLog> state = {};
};

struct ServerStats {
  std::uint64_t num_accepted = 0;
  std::uint64_t num_open = 0;
  std::uint64_t num_requests = 0;  ///< of connections that are open or were
  std::uint64_t num_keys = 0;
  std::uint64_t num_waiting = 0;         ///< clients in a WAIT or BARRIER
  std::uint64_t num_bytes = 0;           ///< that the store holds, see StoreCore::num_bytes()
  std::uint64_t num_buffered_bytes = 0;  ///< see ServerOptions::max_buffered_bytes
  RejectionCounts rejections{};
};

/// Processor time of a GET with 32 clients, from scripts/bench store (Zen 4 in a virtual machine, Linux 6.18,
/// loopback): 5.7 us, a loop that only receives and sends (store_floor) 5.4, Redis 7.0 6.6. Tried and left
/// out: edge-triggered and sending at the end of the turn, no gain; staying in the inner set for 100 us, 12.7
/// instead of 8.8 us for one client; io_uring, 0.5 us less, but forbidden in most containers.
class Server {
 public:
  /// Listens before it returns. A busy port's error names its owner.
  [[nodiscard]] static Result<std::unique_ptr<Server>> listen(boost::asio::io_context& loop,
                                                              const ServerOptions& options, const Log& log);
  /// stop()s.
  virtual ~Server() = default;

  [[nodiscard]] virtual const Listener& listener() const = 0;
  [[nodiscard]] std::uint16_t port() const { return listener().port; }

  /// Closes every connection and forgets the keys, and goes on at the same port. Not with
  /// ServerOptions::state.
  virtual void begin_anew() = 0;

  /// Stops accepting, sends what the sockets take of pending answers, closes every connection and forgets the
  /// keys. Does not block; the loop drains by itself. A second call does nothing.
  virtual void stop() = 0;

  [[nodiscard]] virtual ServerStats stats() const = 0;
};

}  // namespace muster::net
