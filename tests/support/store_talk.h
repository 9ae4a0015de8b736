// SPDX-License-Identifier: Apache-2.0
// StoreTalk: a modern TCPStore client whose server runs on the test's own loop, which it drives while it
// waits for an answer. For tests.
#pragma once

#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>

#include "rendezvous/store/wire.h"
#include "tests/support/catch.h"
#include "tests/support/cluster.h"
#include "tests/support/send_queue.h"

namespace muster::test {

class StoreTalk {
 public:
  StoreTalk(Cluster& cluster, std::uint16_t port) : cluster_(cluster), fd_(connect_raw(port)) {
    send({.op = wire::Op::kValidate, .number = wire::kMagic});
  }

  void send(const wire::Request& request) {
    wire::encode(request, unsent_.bytes());
    unsent_.send(fd_.get());
  }
  void send_set(std::string_view key, std::string_view value) {
    send({.op = wire::Op::kSet, .key = key, .value = value});
  }
  void send_wait(std::string_view key) { send({.op = wire::Op::kWait, .items = {&key, 1}}); }
  void send_add(std::string_view key, std::int64_t number) {
    send({.op = wire::Op::kAdd, .key = key, .number = number});
  }

  /// So many bytes of answers.
  std::string receive(std::size_t size) {
    cluster_.wait([&] {
      turn();
      return received_.size() >= size;
    });
    const std::string out = received_.substr(0, size);
    received_.erase(0, size);
    return out;
  }
  std::int64_t receive_i64() { return static_cast<std::int64_t>(wire::load_u64(receive(8).data())); }
  std::string receive_bytes() { return receive(static_cast<std::size_t>(receive_i64())); }
  [[nodiscard]] bool has_sent_all() {
    turn();
    return unsent_.size() == 0;
  }

  void set(std::string_view key, std::string_view value) {
    send_set(key, value);
    cluster_.wait([&] { return has_sent_all(); });
  }
  std::string get(std::string_view key) {
    send_wait(key);
    REQUIRE(receive(1) == std::string(1, wire::kStopWaiting));
    send({.op = wire::Op::kGet, .key = key});
    return receive_bytes();
  }
  std::int64_t add(std::string_view key, std::int64_t number) {
    send_add(key, number);
    return receive_i64();
  }
  std::int64_t num_keys() {
    send({.op = wire::Op::kGetNumKeys});
    return receive_i64();
  }

 private:
  // The loop has work of its own; this socket is looked at after each piece of it.
  void turn() {
    unsent_.send(fd_.get());
    char block[65536];
    while (true) {
      const ssize_t n = ::recv(fd_.get(), block, sizeof block, MSG_DONTWAIT);
      if (n <= 0) break;
      received_.append(block, static_cast<std::size_t>(n));
    }
    cluster_.loop.restart();
    cluster_.loop.run_one_for(1ms);
  }

  Cluster& cluster_;
  UniqueFd fd_;
  SendQueue unsent_;
  std::string received_;
};

}  // namespace muster::test
