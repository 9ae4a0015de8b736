// SPDX-License-Identifier: Apache-2.0
// What unauthenticated, broken and slow clients do to a running musterd: each is closed with a reason in the
// log, and a client that was there before notices nothing.
#include <fstream>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/store/wire.h"
#include "tests/support/catch.h"
#include "tests/support/hex.h"
#include "tests/support/musterd.h"
#include "tests/support/raw_client.h"

using namespace muster;
using namespace muster::wire;
using muster::test::kTimeout;
using muster::test::Musterd;
using muster::test::RawClient;
using muster::test::unhex;

namespace {

const std::string kValidate = unhex("00 ce f7 85 3c");

std::string encoded(const Request& request) {
  std::string out;
  encode(request, out);
  return out;
}

std::string with_length(std::string bytes, std::int64_t length) {
  put_i64(bytes, length);
  return bytes;
}

// The "timer" column of /proc/net/tcp for the server's end of a connection: 02 while keep-alive probes are
// due.
std::string server_side_timer(std::uint16_t server_port, std::uint16_t client_port) {
  std::ifstream table("/proc/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string sl, local, remote, state, queues, timer;
    fields >> sl >> local >> remote >> state >> queues >> timer;
    if (local.ends_with(fmt::format(":{:04X}", server_port)) &&
        remote.ends_with(fmt::format(":{:04X}", client_port)))
      return timer.substr(0, 2);
  }
  return "no such connection";
}

}  // namespace

TEST_CASE("bad bytes close their connection with a reason and disturb no other") {
  Musterd daemon = Musterd::listening();
  RawClient steady = RawClient::modern(daemon.port());
  RawClient waiter = RawClient::modern(daemon.port());
  const std::string_view keys[] = {"/late"};
  waiter.send({.op = Op::kWait, .items = keys});
  steady.send({.op = Op::kSet, .key = "/text", .value = "not a number"});
  REQUIRE(steady.alive());

  const struct {
    std::string bytes;
    std::string reason;
  } cases[] = {
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "first byte 0x47 begins no TCPStore request"},
      {unhex("16 03 01 02 00 01 00 01 fc 03 03"), "first byte 0x16 begins no TCPStore request"},
      {std::string(100000, '\xff'), "first byte 0xff begins no TCPStore request"},
      {unhex("00 de ad be ef"), "are neither VALIDATE"},
      {kValidate + kValidate, "a second VALIDATE"},
      {kValidate + "\x13", "unknown opcode 0x13"},
      {kValidate + "\xc8", "unknown opcode 0xc8"},
      {kValidate + with_length("\x01", 8193), "SET announces a key of 8193 bytes, the limit is 8192"},
      {kValidate + with_length("\x03", -1), "GET announces a key of 18446744073709551615 bytes"},
      {kValidate + with_length(with_length("\x01", 1) + "k", 8388609),
       "SET announces a value of 8388609 bytes"},
      {kValidate + with_length("\x06", 131073), "WAIT announces 131073 keys, the limit is 131072"},
      {kValidate + with_length("\x0b", std::int64_t{1} << 62),
       "MULTI_SET announces 4611686018427387904 keys"},
      {kValidate + encoded({.op = Op::kAdd, .key = "/text", .number = 1}), "ADD to key /text, whose value"},
      {kValidate + encoded({.op = Op::kBarrier, .key = "/text", .number = 1}), "BARRIER at key /text"},
  };
  for (const auto& [bytes, reason] : cases) {
    INFO(reason);
    RawClient client(daemon.port());
    client.send(bytes);
    REQUIRE(client.ended());
    const std::string line = daemon.wait_for_line("closed 127.0.0.1:");
    REQUIRE_THAT(line, Catch::Contains(reason) && Catch::Contains("warning") &&
                           Catch::Contains(fmt::format("127.0.0.1:{}:", client.local_port())));
    REQUIRE(steady.alive());
  }
  steady.send({.op = Op::kSet, .key = "/late", .value = "1"});
  REQUIRE(waiter.receive(1) == std::string(1, kStopWaiting));
}

TEST_CASE(
    "a client that goes in the middle of a request is logged with the request, one between requests is not") {
  Musterd daemon = Musterd::listening();
  {
    RawClient orderly = RawClient::modern(daemon.port());
    REQUIRE(orderly.alive());
  }
  const std::string set = kValidate + encoded({.op = Op::kSet, .key = "/k", .value = "value"});
  {
    RawClient torn(daemon.port());
    torn.send(set.substr(0, set.size() - 1));
  }
  REQUIRE_THAT(daemon.wait_for_line("closed"),
               Catch::Contains("it closed the connection in the middle of SET"));
  RawClient other = RawClient::modern(daemon.port());
  other.send({.op = Op::kGetNumKeys});
  REQUIRE(other.receive(8) == std::string(8, '\0'));
}

TEST_CASE("a port scanner's connections leave nothing behind") {
  Musterd daemon = Musterd::listening();
  RawClient steady = RawClient::modern(daemon.port());
  for (int i = 0; i < 200; ++i) {
    RawClient scanner(daemon.port());
    if (i % 2 == 0) scanner.reset();
  }
  REQUIRE(steady.alive());
  // Connections are accepted in the order they were made: once this one is answered, no scanner waits.
  RawClient last = RawClient::modern(daemon.port());
  REQUIRE(last.alive());
  daemon.signal(SIGTERM);
  REQUIRE_THAT(
      daemon.finish().second,
      Catch::Contains("after 202 connections and 4 requests of TCPStore clients, 2 of which are connected"));
}

TEST_CASE("silent and half-open connections are kept, probed by the kernel, and hold nobody up") {
  Musterd daemon = Musterd::listening();
  std::vector<RawClient> silent;
  for (int i = 0; i < 50; ++i) silent.emplace_back(daemon.port());
  for (int i = 0; i < 50; ++i) {
    silent.push_back(RawClient::modern(daemon.port()));
    silent.back().send(std::string_view("\x01\x05\0\0", 4));
  }
  RawClient steady = RawClient::modern(daemon.port());
  REQUIRE(steady.alive());
  REQUIRE(server_side_timer(daemon.port(), silent.front().local_port()) == "02");
  // They still work.
  silent.back().send(std::string_view("\0\0\0\0\0/late\x01\0\0\0\0\0\0\0v", 19));
  REQUIRE(silent.back().alive());
  steady.send({.op = Op::kGet, .key = "/late"});
  REQUIRE(steady.receive(9) == unhex("01 00 00 00 00 00 00 00 76"));
}

TEST_CASE("a client that shuts its sending side still gets its answers") {
  Musterd daemon = Musterd::listening();
  RawClient client = RawClient::modern(daemon.port());
  client.send({.op = Op::kAdd, .key = "/n", .number = 3});
  client.shut_down_sending();
  REQUIRE(client.receive(9) == unhex("03 00 00 00 00 00 00 00"));
}

TEST_CASE("a client that asks far ahead and reads late gets every answer in order") {
  Musterd daemon = Musterd::listening();
  RawClient client = RawClient::modern(daemon.port());
  constexpr std::size_t kSize = 1 << 20;
  constexpr int kTimes = 48;
  for (int i = 0; i < kTimes; ++i) {
    client.send(
        {.op = Op::kSet, .key = "/big", .value = std::string(kSize, static_cast<char>('a' + i % 26))});
    client.send({.op = Op::kGet, .key = "/big"});
    if (i % 2 == 0) continue;  // further ahead, a client that blocks in send() would wait for itself
    for (int j = i - 1; j <= i; ++j) {
      const std::string answer = client.receive(8 + kSize);
      REQUIRE(answer.size() == 8 + kSize);
      REQUIRE(answer.back() == 'a' + j % 26);
    }
  }
  for (int i = 0; i < 64; ++i) client.send({.op = Op::kGet, .key = "/big"});
  std::size_t got = 0;
  for (int i = 0; i < 64; ++i) got += client.receive(8 + kSize).size();
  REQUIRE(got == 64 * (8 + kSize));
  REQUIRE(client.alive());
}

#ifndef MUSTER_SANITIZED
// Not under the sanitizers: their check of virtual tables opens a pipe, and where it gets none it ends
// musterd with a false report.
TEST_CASE("without a free descriptor new connections are turned away, and come in again later") {
  Musterd daemon = Musterd::listening();
  RawClient steady = RawClient::modern(daemon.port());
  REQUIRE(steady.alive());
  rlimit limit{24, 24};
  REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr) == 0);
  {
    std::vector<RawClient> many;
    for (int i = 0; i < 40; ++i) many.emplace_back(daemon.port());
    REQUIRE_THAT(daemon.wait_for_line("closed"), Catch::Contains("raise the descriptor limit"));
    REQUIRE(steady.alive());
    REQUIRE(many.back().ended());
  }
  REQUIRE(steady.alive());
  // The loop has seen the others go once it answers a round trip that began after that.
  RawClient late = RawClient::modern(daemon.port());
  REQUIRE(late.alive());
}
#endif

TEST_CASE("a key that a thousand clients wait for reaches each of them") {
  Musterd daemon = Musterd::listening();
  std::vector<RawClient> waiters;
  const std::string_view keys[] = {"/go"};
  for (int i = 0; i < 1000; ++i) {
    waiters.push_back(RawClient::modern(daemon.port()));
    waiters.back().send({.op = Op::kWait, .items = keys});
  }
  RawClient setter = RawClient::modern(daemon.port());
  setter.send({.op = Op::kSet, .key = "/go", .value = ""});
  for (RawClient& waiter : waiters) REQUIRE(waiter.receive(1) == std::string(1, kStopWaiting));
}
