// SPDX-License-Identifier: Apache-2.0
// RawAgent: a connection of the control protocol that a test speaks message by message, without an event
// loop. Every wait has a deadline; what does not come by then throws, which fails the test.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/protocol/auth.h"
#include "rendezvous/protocol/control.h"
#include "tests/support/raw_client.h"

namespace muster::test {

class RawAgent {
 public:
  explicit RawAgent(std::uint16_t port, int receive_buffer_bytes = 0)
      : client_(port, receive_buffer_bytes), handshake_({}, auth::random_nonce()) {}

  /// Without a secret.
  void open(const std::string& job) {
    const control::Preamble mine;
    std::string bytes;
    control::encode(mine, bytes);
    control::encode(control::Message(handshake_.start(mine, job, "n1")), bytes);
    client_.send(bytes);
    const auto challenge = expect<control::Challenge>();
    handshake_.preamble(decoder_.preamble());
    send(handshake_.challenge(challenge).value());
    expect<control::Welcome>();
  }
  void join(int nodes, const std::string& host = "n1") {
    control::Join join;
    join.request.id = auth::random_node_id();
    join.request.host = host;
    join.request.wanted_ranks = 1;
    join.request.addresses = {"127.0.0.1"};
    join.settings.min_nodes = join.settings.max_nodes = nodes;
    send(join);
  }

  void send(const control::Message& message) {
    std::string bytes;
    control::encode(message, bytes);
    client_.send(bytes);
  }
  void send_bytes(std::string_view bytes) { client_.send(bytes); }

  /// The next message of this kind; those before it are dropped.
  template <class T>
  T expect() {
    while (true) {
      control::Message message;
      switch (decoder_.next(input_, message)) {
        case control::Decoder::Step::kMessage:
          if (const auto* found = std::get_if<T>(&message)) return *found;
          continue;
        case control::Decoder::Step::kPreamble:
          continue;
        case control::Decoder::Step::kError:
          throw std::runtime_error(decoder_.error());
        case control::Decoder::Step::kNeedMore:
          break;
      }
      received_ = client_.receive(1);
      if (received_.empty()) throw std::runtime_error("the coordinator has closed the connection");
      input_ = received_;
    }
  }

  /// A round trip.
  bool alive() {
    send(control::Heartbeat{});
    expect<control::Heartbeat>();
    return true;
  }
  [[nodiscard]] RawClient& client() { return client_; }

 private:
  RawClient client_;
  auth::ClientHandshake handshake_;
  control::Decoder decoder_;
  std::string received_;
  std::string_view input_;
};

}  // namespace muster::test
