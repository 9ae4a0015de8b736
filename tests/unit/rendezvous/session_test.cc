// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/session.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/hex.h"
#include "tests/support/seed.h"
#include "tests/support/sessions.h"
#include "tests/unit/rendezvous/worked_session.h"

using namespace muster;
using namespace muster::wire;
using muster::test::hex;
using muster::test::Sessions;
using muster::test::unhex;
using State = Session::State;

namespace {

// The keys of a LIST_KEYS answer, whose order is unspecified.
std::multiset<std::string> listed(std::string_view reply) {
  std::multiset<std::string> out;
  const std::uint64_t count = load_u64(reply.data());
  reply.remove_prefix(8);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t size = load_u64(reply.data());
    out.emplace(reply.substr(8, size));
    reply.remove_prefix(8 + size);
  }
  REQUIRE(reply.empty());
  return out;
}

constexpr Generation kOld = Generation::kTorch20;

}  // namespace

TEST_CASE("the worked session of the protocol gives the documented bytes, whole and byte by byte") {
  for (const bool bytewise : {false, true}) {
    Sessions s;
    const ClientId a = s.open();
    const ClientId b = s.open_modern();
    for (const Exchange& exchange : kWorkedSession) {
      INFO(exchange.what);
      const bool second = exchange.what.find("second caller") != std::string_view::npos;
      const ClientId client = second ? b : a;
      const std::string bytes = unhex(exchange.sent);
      if (bytewise) {
        for (const char byte : bytes)
          REQUIRE(s.feed(client, std::string_view(&byte, 1)) == State::kNeedInput);
      } else {
        REQUIRE(s.feed(client, bytes) == State::kNeedInput);
      }
      const std::string reply = s.take(client);
      if (exchange.what.starts_with("LIST_KEYS"))
        REQUIRE(listed(reply) == listed(unhex(exchange.received)));
      else
        REQUIRE(hex(reply) == hex(unhex(exchange.received)));
      if (second) REQUIRE(hex(s.take(a)) == "00");
    }
    REQUIRE(s.core().get("/b") == "2");
  }
}

TEST_CASE("bytes captured from PyTorch 1.13 are answered as PyTorch 1.13 answers them") {
  // Opcode and arguments came in segments of their own.
  struct Captured {
    const char* opcode;
    const char* arguments;
    const char* reply;
  };
  const Captured session[] = {
      {"03", "05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00", "01 00 00 00 00 00 00 00"},
      {"00", "02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76", ""},
      {"01", "02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76 01 00 00 00 00 00 00 00 77",
       "01 00 00 00 00 00 00 00 77"},
      {"01", "02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 7a 7a 01 00 00 00 00 00 00 00 71",
       "01 00 00 00 00 00 00 00 77"},
      {"01", "03 00 00 00 00 00 00 00 2f 6e 6b 02 00 00 00 00 00 00 00 7a 7a 01 00 00 00 00 00 00 00 71",
       "02 00 00 00 00 00 00 00 7a 7a"},
      {"01", "03 00 00 00 00 00 00 00 2f 6e 6b 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 71",
       "01 00 00 00 00 00 00 00 71"},
      {"05", "01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b", "00"},
      {"02", "02 00 00 00 00 00 00 00 2f 6b", "01 00 00 00 00 00 00 00 77"},
      {"03", "02 00 00 00 00 00 00 00 2f 61 05 00 00 00 00 00 00 00", "05 00 00 00 00 00 00 00"},
      {"03", "02 00 00 00 00 00 00 00 2f 61 f9 ff ff ff ff ff ff ff", "fe ff ff ff ff ff ff ff"},
      {"06", "", "04 00 00 00 00 00 00 00"},
      {"08", "02 00 00 00 00 00 00 00 2f 61", "01 00 00 00 00 00 00 00"},
      {"08", "02 00 00 00 00 00 00 00 2f 61", "00 00 00 00 00 00 00 00"},
      {"05", "02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 2f 6e 6b", "00"},
  };
  Sessions s;
  const ClientId a = s.open();
  for (const auto& [opcode, arguments, reply] : session) {
    INFO(opcode << " | " << arguments);
    State state = s.feed(a, unhex(opcode));
    if (*arguments != '\0') state = s.feed(a, unhex(arguments));
    if (state == State::kUndecided) state = s.settle(a);
    REQUIRE(state == State::kNeedInput);
    REQUIRE(hex(s.take(a)) == reply);
  }
  REQUIRE(s.session(a).generation() == Generation::kTorch20);
}

TEST_CASE("a client of PyTorch 2.1 deletes, appends, sets and gets many, and cancels waits") {
  Sessions s;
  const ClientId a = s.open();
  const auto feed = [&](std::string_view text) {
    REQUIRE(s.feed(a, unhex(text)) == State::kNeedInput);
    return hex(s.take(a));
  };
  // APPEND /k += v, then DELETE_KEY /k twice
  REQUIRE(feed("08 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76").empty());
  REQUIRE(s.core().get("/k") == "v");
  REQUIRE(feed("07 02 00 00 00 00 00 00 00 2f 6b") == "01 00 00 00 00 00 00 00");
  REQUIRE(feed("07 02 00 00 00 00 00 00 00 2f 6b") == "00 00 00 00 00 00 00 00");
  // MULTI_SET /k=x, MULTI_GET /k
  REQUIRE(
      feed("0a 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 78").empty());
  REQUIRE(feed("09 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b") == "01 00 00 00 00 00 00 00 78");
  // WAIT /z, CANCEL_WAIT
  REQUIRE(feed("05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 7a").empty());
  REQUIRE(feed("0b") == "01");
}

TEST_CASE("an old client that gave up a wait gets no late byte after its next request") {
  Sessions s;
  const ClientId a = s.open();
  const ClientId b = s.open_modern();
  const std::string_view keys[] = {"/z"};
  s.send(a, {.op = Op::kWait, .items = keys}, kOld);
  s.send(a, {.op = Op::kGetNumKeys}, kOld);
  REQUIRE(s.take(a) == std::string(8, '\0'));
  s.send(b, {.op = Op::kSet, .key = "/z", .value = "1"});
  REQUIRE(s.take(a).empty());
}

TEST_CASE(
    "CANCEL_WAIT is always answered, after a stop that crossed it, and the connection is as good as new") {
  Sessions s;
  const ClientId a = s.open_modern();
  const ClientId b = s.open_modern();
  const std::string_view keys[] = {"/z"};
  s.send(a, {.op = Op::kCancelWait});
  REQUIRE(hex(s.take(a)) == "01");
  s.send(a, {.op = Op::kWait, .items = keys});
  s.send(b, {.op = Op::kSet, .key = "/z", .value = "1"});
  s.send(a, {.op = Op::kCancelWait});
  REQUIRE(hex(s.take(a)) == "00 01");
  s.send(a, {.op = Op::kWait, .items = keys});
  REQUIRE(hex(s.take(a)) == "00");
}

TEST_CASE("a client that sends on after a WAIT gets its stop in front of the next answer") {
  Sessions s;
  const ClientId a = s.open_modern();
  const std::string_view keys[] = {"/z"};
  std::string bytes;
  encode({.op = Op::kWait, .items = keys}, bytes);
  encode({.op = Op::kSet, .key = "/z", .value = "1"}, bytes);
  encode({.op = Op::kPing, .number = 0x01020304}, bytes);
  REQUIRE(s.feed(a, bytes) == State::kNeedInput);
  REQUIRE(hex(s.take(a)) == "00 04 03 02 01");
}

TEST_CASE("a client that is closed while it waits is forgotten") {
  Sessions s;
  const ClientId a = s.open_modern();
  const ClientId b = s.open_modern();
  const std::string_view keys[] = {"/z"};
  s.send(a, {.op = Op::kWait, .items = keys});
  s.send(a, {.op = Op::kBarrier, .key = "/b", .number = 2});
  s.close(a);
  s.send(b, {.op = Op::kSet, .key = "/z", .value = "1"});
  REQUIRE(s.core().num_waiting() == 0);
  REQUIRE(s.take(a).empty());
}

TEST_CASE("ADD to a value that is no number closes that connection and changes nothing") {
  Sessions s;
  const ClientId a = s.open_modern();
  const ClientId b = s.open_modern();
  s.send(a, {.op = Op::kSet, .key = "/k", .value = "text"});
  REQUIRE(s.send(a, {.op = Op::kAdd, .key = "/k", .number = 1}) == State::kClose);
  REQUIRE(s.session(a).close_reason() == "ADD to key /k, whose value \"text\" is not a 64-bit number");
  REQUIRE(s.send(a, {.op = Op::kPing}) == State::kClose);
  REQUIRE(s.core().get("/k") == "text");
  REQUIRE(s.send(b, {.op = Op::kGet, .key = "/k"}) == State::kNeedInput);
}

TEST_CASE("requests in front of a bad one are carried out and answered") {
  Sessions s;
  const ClientId a = s.open_modern();
  std::string bytes;
  encode({.op = Op::kAdd, .key = "/n", .number = 1}, bytes);
  bytes += "\xff";
  encode({.op = Op::kSet, .key = "/never", .value = ""}, bytes);
  REQUIRE(s.feed(a, bytes) == State::kClose);
  REQUIRE(s.session(a).close_reason() == "unknown opcode 0xff");
  REQUIRE(hex(s.take(a)) == "01 00 00 00 00 00 00 00");
  REQUIRE_FALSE(s.core().keys().contains("/never"));
}

TEST_CASE("a client that asks and does not read is paused, and loses nothing") {
  SessionLimits limits;
  limits.pause_output_bytes = 100;
  StoreCore core;
  Session session(0, core, limits);
  std::string bytes = unhex("00 ce f7 85 3c");
  for (int i = 1; i <= 50; ++i) encode({.op = Op::kAdd, .key = "/n", .number = 1}, bytes);
  std::string_view input = bytes;
  std::string out;
  std::string taken;
  int pauses = 0;
  while (session.receive(input, out) == State::kOutputFull) {
    REQUIRE(out.size() <= 107);
    REQUIRE(session.receive(input, out) == State::kOutputFull);  // nothing happens until it is sent
    taken += std::exchange(out, {});
    ++pauses;
  }
  taken += out;
  REQUIRE(pauses == 3);
  REQUIRE(taken.size() == 50 * 8);
  REQUIRE(taken.substr(49 * 8) == unhex("32 00 00 00 00 00 00 00"));
}

TEST_CASE("an answer longer than its limit closes the connection before it is built") {
  SessionLimits limits;
  limits.max_output_bytes = 1000;
  Sessions s(limits);
  const ClientId a = s.open_modern();
  s.send(a, {.op = Op::kSet, .key = "/k", .value = std::string(200, 'v')});
  const std::vector<std::string_view> keys(10, "/k");
  REQUIRE(s.send(a, {.op = Op::kMultiGet, .items = keys}) == State::kClose);
  REQUIRE(s.session(a).close_reason() == "the answer to MULTI_GET would be 2080 bytes, the limit is 1000");
  REQUIRE(s.take(a).empty());

  const ClientId b = s.open_modern();
  for (int i = 0; i < 10; ++i)
    s.send(b, {.op = Op::kSet, .key = std::string(100, static_cast<char>('a' + i))});
  REQUIRE(s.send(b, {.op = Op::kListKeys}) == State::kClose);
  REQUIRE(s.session(b).close_reason() == "the answer to LIST_KEYS would be 1098 bytes, the limit is 1000");
  REQUIRE(s.take(b).empty());

  const ClientId c = s.open_modern();
  s.send(c, {.op = Op::kSet, .key = "/long", .value = std::string(993, 'v')});
  REQUIRE(s.send(c, {.op = Op::kGet, .key = "/long"}) == State::kClose);
  REQUIRE(s.session(c).close_reason() == "the answer to GET would be 1001 bytes, the limit is 1000");
  REQUIRE(s.take(c).empty());
}

TEST_CASE("requests cut and joined at random points have the same effects and answers") {
  std::mt19937 random(muster::test::seed());
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::string names[] = {"/a", "/b", "/c", "/q", ""};
  for (int program = 0; program < 300; ++program) {
    const bool old = program % 3 == 0;
    // A run of requests of two clients, as bytes.
    struct Piece {
      ClientId client;
      std::string bytes;
    };
    std::vector<Piece> pieces;
    for (int i = 0; i < 30; ++i) {
      Request request;
      request.op = static_cast<Op>(1 + below(old ? 8 : 18));
      const std::string key = names[below(5)];
      const std::string value(below(4) == 0 ? below(3000) : below(4), static_cast<char>('0' + below(10)));
      std::vector<std::string_view> items;
      for (std::size_t n = below(4); n > 0; --n) {
        items.push_back(names[below(5)]);
        if (request.op == Op::kMultiSet) items.push_back(value);
      }
      request.key = key;
      request.value = value;
      request.desired = "7";
      request.number = static_cast<std::int64_t>(below(5));
      request.items = items;
      Piece piece{static_cast<ClientId>(below(2)), {}};
      encode(request, piece.bytes, old ? kOld : Generation::kModern);
      pieces.push_back(std::move(piece));
    }

    const auto play = [&](bool cut) {
      SessionLimits limits;
      limits.legacy = kOld;
      Sessions s(limits);
      std::string got[2];
      bool closed[2] = {false, false};
      for (const ClientId client : {s.open(), s.open()})
        if (!old) s.feed(client, unhex("00 ce f7 85 3c"));
      for (const auto& [client, bytes] : pieces) {
        std::string_view rest = bytes;
        while (!rest.empty() && !closed[client]) {
          const std::size_t size = cut ? 1 + below(rest.size()) : rest.size();
          closed[client] = s.feed(client, rest.substr(0, size)) == State::kClose;
          rest.remove_prefix(size);
        }
      }
      for (const ClientId client : {0U, 1U}) got[client] = s.take(client);
      std::vector<std::pair<std::string, std::string>> keys(s.core().keys().begin(), s.core().keys().end());
      std::sort(keys.begin(), keys.end());
      return std::tuple(got[0], got[1], closed[0], closed[1], keys);
    };
    REQUIRE(play(true) == play(false));
  }
}
