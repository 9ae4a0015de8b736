// SPDX-License-Identifier: Apache-2.0
// Two sides of a channel over a connection that breaks at any moment and loses what is on its way.
#include "rendezvous/proxy/store_stream.h"

#include <cstdio>
#include <deque>
#include <random>
#include <variant>

#include "tests/support/catch.h"

using namespace muster;

namespace {

constexpr std::size_t kWindow = 64;

struct Piece {
  std::uint64_t begin;
  std::string bytes;
};
struct Credit {
  std::uint64_t consumed;
};

// One direction: a writer, a reader that takes what it likes, and messages between them in two queues.
struct Channel {
  StoreStream writer{kWindow};
  StoreStream reader{kWindow};
  std::uint64_t num_written = 0;
  std::uint64_t num_sent = 0;  // the writer's place in its stream
  std::string received;
  std::uint64_t num_consumed = 0;
  std::deque<Piece> there;
  std::deque<Credit> back;

  static char byte_at(std::uint64_t place) { return static_cast<char>(place * 7 + place / 251); }

  void write(std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) writer.writable().push_back(byte_at(num_written++));
  }
  bool send(std::size_t most) {
    const std::string piece(writer.sendable(most));
    if (piece.empty()) return false;
    writer.sent(piece.size());
    there.push_back({num_sent, piece});
    num_sent += piece.size();
    return true;
  }
  bool deliver() {
    if (there.empty()) return false;
    const Piece piece = there.front();
    there.pop_front();
    REQUIRE(piece.begin == received.size());  // neither a gap nor twice
    REQUIRE(reader.receive(piece.bytes.size()));
    received += piece.bytes;
    REQUIRE(received.size() - num_consumed <= kWindow);
    return true;
  }
  void consume(std::size_t most) {
    const std::size_t size = std::min(most, received.size() - static_cast<std::size_t>(num_consumed));
    reader.consume(size);
    num_consumed += size;
  }
  bool tell() {
    if (!reader.credit_is_due()) return false;
    back.push_back({reader.tell_consumed()});
    return true;
  }
  bool hear() {
    if (back.empty()) return false;
    REQUIRE(writer.acknowledge(back.front().consumed));
    writer.forget(back.front().consumed);
    back.pop_front();
    return true;
  }
  void reconnect() {
    there.clear();
    back.clear();
    REQUIRE(writer.resume(reader.received()));
    num_sent = reader.received();
    // The reader's own stream, which is empty, is resumed likewise.
    REQUIRE(reader.resume(0));
  }
  void run() {
    bool more = true;
    while (more) {
      consume(kWindow);
      more = false;
      more |= send(16);
      more |= deliver();
      more |= tell();
      more |= hear();
    }
  }
};

}  // namespace

TEST_CASE("a reader that does not move is sent one window, and no more after each new connection") {
  Channel channel;
  channel.write(10 * kWindow);
  for (int i = 0; i < 5; ++i) {
    while (channel.send(16) && channel.deliver()) {
    }
    REQUIRE(channel.received.size() == kWindow);
    channel.reconnect();
  }
  channel.run();
  REQUIRE(channel.received.size() == 10 * kWindow);
  REQUIRE(channel.writer.num_bytes() == 0);
}

TEST_CASE("a word about what was consumed that is lost with its connection is said again") {
  Channel channel;
  channel.write(3 * kWindow);
  while (channel.send(16) && channel.deliver()) {
  }
  channel.consume(kWindow);
  REQUIRE(channel.tell());
  channel.reconnect();
  channel.run();
  REQUIRE(channel.received.size() == 3 * kWindow);
}

TEST_CASE("wherever the connection breaks, every byte comes once, in its place and within the window") {
  const unsigned seed = std::random_device{}();
  std::printf("store stream: seed %u\n", seed);
  CAPTURE(seed);
  std::minstd_rand random(seed);
  const auto below = [&](unsigned limit) { return random() % limit; };
  for (int round = 0; round < 200; ++round) {
    Channel channel;
    for (int step = 0; step < 400; ++step) {
      switch (below(8)) {
        case 0:
          channel.write(below(100));
          break;
        case 1:
        case 2:
          (void)channel.send(1 + below(80));
          break;
        case 3:
        case 4:
          (void)channel.deliver();
          break;
        case 5:
          channel.consume(below(40));
          break;
        case 6:
          (void)channel.tell();
          (void)channel.hear();
          break;
        default:
          if (below(4) == 0) channel.reconnect();
      }
    }
    channel.run();
    REQUIRE(channel.received.size() == channel.num_written);
    for (std::size_t i = 0; i < channel.received.size(); ++i)
      if (channel.received[i] != Channel::byte_at(i)) FAIL("byte " << i);
  }
}

TEST_CASE("counts that cannot be are refused") {
  Channel channel;
  channel.write(40);
  while (channel.send(16) && channel.deliver()) {
  }
  REQUIRE_FALSE(channel.writer.acknowledge(41));
  REQUIRE_FALSE(channel.writer.resume(41));
  REQUIRE(channel.writer.acknowledge(30));
  REQUIRE_FALSE(channel.writer.resume(29));
  REQUIRE(channel.writer.resume(30));
  StoreStream reader(kWindow);
  REQUIRE(reader.receive(kWindow));
  REQUIRE_FALSE(reader.receive(1));
}
