// SPDX-License-Identifier: Apache-2.0
// ControlLink: one connection of an agent to its coordinator, from its address to its end, for coroutines of
// one loop: connection, handshake, messages in, messages out. Owned by ControlClient, a new one per try; kept
// alive by its own operations. Failure: open() and receive() say why; afterwards the link is of no use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <muster/result.h>

#include "rendezvous/agent_client/control_target.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/protocol/control.h"

namespace muster::net {

class ControlLink : public std::enable_shared_from_this<ControlLink> {
 public:
  /// As a reason for close(): what receive() returns then is kTimeout.
  static constexpr const char* kNoAnswer = "no answer in time";

  ControlLink(boost::asio::io_context& loop, ControlTarget target);

  /// Connects and authenticates both ways. `turn`: see dial(). A Refused answer is an error.
  boost::asio::awaitable<Result<control::Welcome>> open(std::size_t turn, Instant deadline);
  /// The next message, not Refused; ends with the connection.
  boost::asio::awaitable<Result<control::Message>> receive();

  void send(const control::Message& message);
  /// Together with what else is sent in this turn of the loop: one write for all.
  void send_soon(const control::Message& message);
  /// What the socket has not taken yet.
  [[nodiscard]] std::size_t unsent_bytes() const { return out_.size() + writing_bytes_; }
  /// So far, of whole messages and others.
  [[nodiscard]] std::uint64_t received_bytes() const { return received_bytes_; }
  /// Called when it has taken everything.
  void on_drained(std::function<void()> call) { drained_ = std::move(call); }
  /// No more is sent once everything before is.
  void finish_sending();
  /// receive() then fails with `reason` where it is given.
  void close(std::string reason = {});
  /// Likewise, and the coordinator, should it live, is not told of an end: this agent tries again.
  void abort(std::string reason);

  /// The coordinator said that it stops, not that it does not want this agent.
  [[nodiscard]] bool coordinator_stops() const { return coordinator_stops_; }
  /// It asked this agent to come again.
  [[nodiscard]] bool coordinator_is_busy() const { return busy_; }
  /// The connection's end was the coordinator's in good order, after it had read what was sent.
  [[nodiscard]] bool was_finished() const { return finished_; }
  /// It ended otherwise, and not by close(): the coordinator may well live.
  [[nodiscard]] bool was_broken() const { return broken_; }
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  boost::asio::awaitable<Result<control::Welcome>> handshake();
  [[nodiscard]] Error refused(const control::Refused& refused);
  void put(std::string_view bytes);
  void append(const control::Message& message);
  void flush();

  ControlTarget target_;
  std::string endpoint_;
  boost::asio::ip::tcp::socket socket_;
  LoopTimer watchdog_;
  control::Decoder decoder_;
  std::size_t last_read_ = 0;
  std::uint64_t received_bytes_ = 0;
  std::string buffer_;  // grows when there is much to read
  std::optional<tls::Stream> tls_;
  std::string plain_;       // what TLS made of buffer_
  std::string_view input_;  // of buffer_ or plain_, not decoded yet
  std::string out_;
  std::string written_;  // while writing_
  bool flush_is_due_ = false;
  bool connected_ = false;
  bool writing_ = false;
  std::size_t writing_bytes_ = 0;
  std::function<void()> drained_;
  bool finishing_ = false;
  bool finished_ = false;
  bool broken_ = false;
  bool coordinator_stops_ = false;
  bool busy_ = false;
  std::string close_reason_;
};

}  // namespace muster::net
