// SPDX-License-Identifier: Apache-2.0
// RequestForwarder: the connections of one node's workers, as clients of a store that the coordinator hosts
// (HostedStores). It decodes their requests, numbers them per connection, and sends them over the agent's one
// control connection. Pure: bytes in, bytes and messages out. Owned by a net::StoreProxy; one thread.
// Order: the requests of a connection run and are answered in their order. Several are under way where a
// repetition cannot change an answer: any number of those that have none (SET), and behind them reads, or one
// request of another kind. What a worker sends while it waits, but for CANCEL_WAIT, is run after the wait.
// Reconnecting: a request is kept until its answer has come whole, or the coordinator says that it is done,
// and is sent again over a new control connection. HostedStores runs no change twice. A coordinator that was
// killed and has the store from its log goes on likewise.
// Failure: a worker that breaks the protocol is closed with a reason; an error of receive(Message) is the
// coordinator's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <muster/result.h>

#include "rendezvous/protocol/control.h"
#include "rendezvous/store/wire.h"
#include "rendezvous/store/wire_decoder.h"

namespace muster {

class RequestForwarder {
 public:
  /// Of a worker's connection; never used twice.
  using Number = std::uint32_t;

  /// A connection is not read while it has so many requests, or bytes of requests or of unread answers, here.
  static constexpr std::size_t kMaxRequests = 256;
  static constexpr std::size_t kMaxRequestBytes = std::size_t{1} << 20;
  static constexpr std::size_t kMaxUnreadBytes = std::size_t{1} << 20;
  /// Reads of a connection that are under way: the answers to them may come while the worker reads nothing.
  static constexpr std::size_t kMaxReads = 16;

  /// For the workers of `generation`. `legacy`: see wire::Decoder.
  explicit RequestForwarder(std::int64_t generation, const wire::Limits& limits = {},
                            wire::Generation legacy = wire::Generation::kLegacy);
  ~RequestForwarder();

  // Towards the workers.

  [[nodiscard]] Number open();
  enum class State {
    kNeedInput,  ///< every byte was taken
    kPaused,     ///< call again with the rest when the connection is in take_ready()
    kUndecided,  ///< as kNeedInput; call settle() if the worker stays silent for a moment
    kClose,      ///< close the connection: reason()
  };
  [[nodiscard]] State receive(Number connection, std::string_view& input);
  /// See wire::Decoder::settle().
  [[nodiscard]] State settle(Number connection);
  /// Bytes for the worker. consumed() when its socket took them.
  [[nodiscard]] std::string_view answers(Number connection) const;
  void consumed(Number connection, std::size_t size);
  /// The worker has gone. What it asked for before is still done.
  void close(Number connection);
  /// Connections that have answers, may send on, or are to be closed (reason() is not empty), since the last
  /// call.
  [[nodiscard]] std::vector<Number> take_ready();
  [[nodiscard]] const std::string& reason(Number connection) const;
  /// Held for a connection: requests, whole or not, that are not done, and unread answers.
  [[nodiscard]] std::size_t num_buffered_bytes(Number connection) const;
  [[nodiscard]] bool between_requests(Number connection) const;
  /// Of requests whose workers have gone and which are not done.
  [[nodiscard]] std::size_t num_closing_bytes() const { return num_closing_bytes_; }

  // Towards the coordinator.

  /// A connection to it is there, or is there again.
  void connected();
  void disconnected();
  [[nodiscard]] Result<void> receive(const control::Message& message);
  /// The next message to send; false: none. Connections take turns.
  [[nodiscard]] bool next(control::Message& message);
  /// The store is there: workers can be started.
  [[nodiscard]] bool attached() const { return instance_ != 0; }

  [[nodiscard]] std::size_t num_connections() const { return connections_.size(); }

 private:
  struct Connection;

  [[nodiscard]] Connection& at(Number connection) const { return *connections_.at(connection); }
  void take(Connection& connection, const wire::Request& request);
  void insert(Connection& connection, std::size_t at, const wire::Request& request, bool discard);
  void make_ready(Connection& connection);
  void take_turn(Connection& connection);
  void count_closing(Connection& connection, std::size_t bytes);
  [[nodiscard]] std::string answered(const control::StoreAnswer& answer);
  void closed(const control::StoreClose& closed);

  std::int64_t generation_;
  wire::Limits limits_;
  wire::Generation legacy_;
  std::uint64_t instance_ = 0;
  bool linked_ = false;
  bool attached_ = false;  // on the present connection
  std::uint32_t num_reopened_ = 0;
  bool attach_is_due_ = false;
  std::unordered_map<Number, std::unique_ptr<Connection>> connections_;
  Number next_connection_ = 1;
  std::size_t num_closing_bytes_ = 0;
  std::vector<Number> ready_;
  // To be sent over the present connection, in this order.
  std::deque<Number> opens_;
  std::deque<Number> closes_;  // of connections that the coordinator has closed
  std::deque<Number> turns_;   // with a request
};

}  // namespace muster
