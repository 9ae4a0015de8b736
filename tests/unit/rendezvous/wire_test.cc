// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/wire.h"

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/wire_decoder.h"
#include "tests/support/catch.h"
#include "tests/support/hex.h"

using namespace muster;
using namespace muster::wire;
using muster::test::hex;
using muster::test::unhex;

namespace {

const std::string kValidate = unhex("00 ce f7 85 3c");

// A request with its own memory.
struct Copy {
  Op op;
  std::string key, value, desired;
  std::int64_t number;
  std::vector<std::string> items;

  explicit Copy(const Request& r)
      : op(r.op),
        key(r.key),
        value(r.value),
        desired(r.desired),
        number(r.number),
        items(r.items.begin(), r.items.end()) {}
  friend bool operator==(const Copy&, const Copy&) = default;
};

const std::vector<std::string_view> kThreeKeys = {"/a", "", "/ccc"};
const std::vector<std::string_view> kTwoPairs = {"/a", "1", "/b", ""};

// One request of every kind.
std::vector<Request> all_requests() {
  return {
      {.op = Op::kSet, .key = "/k", .value = "value"},
      {.op = Op::kCompareSet, .key = "/k", .value = "expected", .desired = "desired"},
      {.op = Op::kGet, .key = "/k"},
      {.op = Op::kAdd, .key = "/k", .number = -7},
      {.op = Op::kCheck, .items = kThreeKeys},
      {.op = Op::kWait, .items = kThreeKeys},
      {.op = Op::kGetNumKeys},
      {.op = Op::kDeleteKey, .key = "/k"},
      {.op = Op::kAppend, .key = "/k", .value = ""},
      {.op = Op::kMultiGet, .items = kThreeKeys},
      {.op = Op::kMultiSet, .items = kTwoPairs},
      {.op = Op::kCancelWait},
      {.op = Op::kPing, .number = 0x89abcdef},
      {.op = Op::kQueuePush, .key = "/q", .value = "element"},
      {.op = Op::kQueuePop, .key = "/q"},
      {.op = Op::kQueueLen, .key = "/q"},
      {.op = Op::kListKeys},
      {.op = Op::kBarrier, .key = "/b", .number = 4},
  };
}

// Everything a decoder makes of chunks; REQUIREs that it takes each chunk whole.
std::vector<Copy> decode(Decoder& decoder, const std::vector<std::string_view>& chunks) {
  std::vector<Copy> out;
  Request request;
  for (std::string_view input : chunks) {
    // A copy of exactly this size, so that reading past it is noticed by the address sanitizer.
    const std::vector<char> memory(input.begin(), input.end());
    input = std::string_view(memory.data(), memory.size());
    while (true) {
      const auto step = decoder.next(input, request);
      INFO(decoder.error());
      REQUIRE(step != Decoder::Step::kError);
      if (step != Decoder::Step::kRequest) break;
      out.emplace_back(request);
    }
    REQUIRE(input.empty());
  }
  return out;
}

// The error for a modern client's bytes, or "".
std::string error_of(std::string bytes, const Limits& limits = {}) {
  Decoder decoder(limits);
  Request request;
  bytes = kValidate + bytes;
  std::string_view input = bytes;
  while (true) {
    const auto step = decoder.next(input, request);
    if (step == Decoder::Step::kError) return decoder.error();
    if (step != Decoder::Step::kRequest) return {};
  }
}

std::string first_bytes_error(std::string_view bytes) {
  Decoder decoder{Limits{}};
  Request request;
  while (true) {
    const auto step = decoder.next(bytes, request);
    if (step == Decoder::Step::kError) return decoder.error();
    if (step != Decoder::Step::kRequest) return {};
  }
}

std::string encoded(const Request& request, Generation generation = Generation::kModern) {
  std::string out;
  encode(request, out, generation);
  return out;
}

}  // namespace

TEST_CASE("every request decodes to what was encoded") {
  for (const Request& request : all_requests()) {
    Decoder decoder{Limits{}};
    const std::string bytes = kValidate + encoded(request);
    const auto got = decode(decoder, {bytes});
    REQUIRE(got.size() == 2);
    REQUIRE(got[1] == Copy(request));
    REQUIRE(decoder.generation() == Generation::kModern);
  }
}

TEST_CASE("every request split at every byte decodes to the same request") {
  for (const Request& request : all_requests()) {
    const std::string bytes = kValidate + encoded(request);
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      Decoder decoder{Limits{}};
      const std::string_view all = bytes;
      const auto got = decode(decoder, {all.substr(0, cut), all.substr(cut)});
      REQUIRE(got.size() == 2);
      REQUIRE(got[1] == Copy(request));
      REQUIRE_FALSE(decoder.in_request());
    }
  }
}

TEST_CASE("all requests in one segment, and each byte in a segment of its own, decode to the same requests") {
  std::string bytes = kValidate;
  std::vector<Copy> expected = {Copy({.op = Op::kValidate, .number = kMagic})};
  for (int round = 0; round < 2; ++round) {
    for (const Request& request : all_requests()) {
      bytes += encoded(request);
      expected.emplace_back(request);
    }
  }
  Decoder whole{Limits{}};
  REQUIRE(decode(whole, {bytes}) == expected);
  std::vector<std::string_view> single;
  for (std::size_t i = 0; i < bytes.size(); ++i) single.push_back(std::string_view(bytes).substr(i, 1));
  Decoder bytewise{Limits{}};
  REQUIRE(decode(bytewise, single) == expected);
}

TEST_CASE("an old client's requests have opcodes one lower and the same arguments") {
  for (const Request& request : all_requests()) {
    const int opcode = opcode_byte(request.op, Generation::kTorch20);
    if (opcode < 0 || request.op == Op::kDeleteKey) continue;
    const std::string bytes = encoded(request, Generation::kTorch20);
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
      Decoder decoder{Limits{}};
      const std::string_view all = bytes;
      REQUIRE(decode(decoder, {all.substr(0, cut), all.substr(cut)}) == std::vector{Copy(request)});
      REQUIRE(decoder.generation() == Generation::kLegacy);
    }
  }
}

TEST_CASE("opcodes 9 to 11 of an old client are those of PyTorch 2.1, as is everything after them") {
  for (const Request& request : all_requests()) {
    if (request.op != Op::kMultiGet && request.op != Op::kMultiSet && request.op != Op::kCancelWait) continue;
    Decoder decoder{Limits{}};
    const Request deletion{.op = Op::kDeleteKey, .key = "/k"};
    const std::string bytes =
        encoded(request, Generation::kTorch21) + encoded(deletion, Generation::kTorch21);
    REQUIRE(decode(decoder, {bytes}) == std::vector{Copy(request), Copy(deletion)});
    REQUIRE(decoder.generation() == Generation::kTorch21);
  }
}

TEST_CASE("byte 7 is WATCH_KEY, which is refused, as a connection's first request and DELETE_KEY later") {
  REQUIRE(first_bytes_error(unhex("07 02 00 00 00 00 00 00 00 2f 6b")) ==
          "WATCH_KEY of PyTorch up to 2.0 is not served");

  const Request get{.op = Op::kGet, .key = "/k"};
  const Request deletion{.op = Op::kDeleteKey, .key = "/k"};
  Decoder other{Limits{}};
  REQUIRE(decode(other, {encoded(get, Generation::kTorch21) + encoded(deletion, Generation::kTorch21)}) ==
          std::vector{Copy(get), Copy(deletion)});
  REQUIRE(other.generation() == Generation::kTorch21);
}

TEST_CASE("byte 8 is APPEND when a value follows and DELETE_KEY when the client stays silent") {
  const Request append{.op = Op::kAppend, .key = "/k", .value = "v"};
  const std::string bytes = encoded(append, Generation::kTorch21);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Decoder decoder{Limits{}};
    const std::string_view all = bytes;
    REQUIRE(decode(decoder, {all.substr(0, cut), all.substr(cut)}) == std::vector{Copy(append)});
    REQUIRE(decoder.generation() == Generation::kTorch21);
  }
  const Request deletion{.op = Op::kDeleteKey, .key = "/k"};
  const std::string short_bytes = encoded(deletion, Generation::kTorch20);
  for (std::size_t cut = 0; cut <= short_bytes.size(); ++cut) {
    Decoder decoder{Limits{}};
    const std::string_view all = short_bytes;
    REQUIRE(decode(decoder, {all.substr(0, cut), all.substr(cut)}).empty());
    Request request;
    REQUIRE(decoder.settle(request) == Decoder::Step::kRequest);
    REQUIRE(Copy(request) == Copy(deletion));
    REQUIRE(decoder.settle(request) == Decoder::Step::kNeedMore);
    REQUIRE(decoder.generation() == Generation::kTorch20);
    REQUIRE(decode(decoder, {encoded(deletion, Generation::kTorch20)}) == std::vector{Copy(deletion)});
  }
}

TEST_CASE("a configured generation needs no guessing") {
  const Request deletion{.op = Op::kDeleteKey, .key = "/k"};
  for (const auto generation : {Generation::kTorch20, Generation::kTorch21}) {
    Decoder decoder(Limits{}, generation);
    REQUIRE(decode(decoder, {encoded(deletion, generation)}) == std::vector{Copy(deletion)});
    REQUIRE(decoder.generation() == generation);
  }
}

TEST_CASE("first bytes that begin no request are refused with the bytes") {
  REQUIRE(first_bytes_error("GET / HTTP/1.1\r\n") == "first byte 0x47 begins no TCPStore request");
  REQUIRE(first_bytes_error("\x16\x03\x01") == "first byte 0x16 begins no TCPStore request");
  REQUIRE(first_bytes_error("\xff") == "first byte 0xff begins no TCPStore request");
  // A wrong magic: as the low half of an old SET's key length it is too long.
  REQUIRE_THAT(first_bytes_error(unhex("00 de ad be ef")),
               Catch::Contains("0xefbeadde are neither VALIDATE"));
  // An old SET with a long key length that only shows in the high half.
  REQUIRE_THAT(first_bytes_error(unhex("00 01 00 00 00 01 00 00 00")),
               Catch::Contains("SET announces a key of"));
  REQUIRE(first_bytes_error(unhex("00 ce f7")).empty());
  REQUIRE(first_bytes_error("").empty());
}

TEST_CASE("a second VALIDATE and unknown opcodes are refused") {
  REQUIRE(error_of(kValidate) == "a second VALIDATE");
  REQUIRE(error_of("\x13") == "unknown opcode 0x13");
  REQUIRE(error_of("\xff") == "unknown opcode 0xff");
}

TEST_CASE("an announced length is accepted up to its limit and refused one beyond, before its bytes come") {
  const Limits limits{.max_key_bytes = 10, .max_value_bytes = 20, .max_keys = 3, .max_request_bytes = 70};
  const auto announce = [](std::string_view start, std::int64_t length) {
    std::string bytes(start);
    put_i64(bytes, length);
    return bytes;
  };
  for (const char op : {1, 2, 3, 4, 8, 9, 14, 15, 16, 18}) {
    const std::string start(1, op);
    REQUIRE(error_of(announce(start, 10), limits).empty());
    REQUIRE_THAT(error_of(announce(start, 11), limits),
                 Catch::Contains("a key of 11 bytes, the limit is 10"));
  }
  for (const char op : {1, 2, 9, 14}) {
    std::string start(1, op);
    put_bytes(start, "k");
    REQUIRE(error_of(announce(start, 20), limits).empty());
    REQUIRE_THAT(error_of(announce(start, 21), limits),
                 Catch::Contains("a value of 21 bytes, the limit is 20"));
    REQUIRE_THAT(error_of(announce(start, -1), limits), Catch::Contains("18446744073709551615 bytes"));
  }
  for (const char op : {5, 6, 10, 11}) {
    const std::string start(1, op);
    REQUIRE(error_of(announce(start, 3), limits).empty());
    REQUIRE_THAT(error_of(announce(start, 4), limits), Catch::Contains("4 keys, the limit is 3"));
    REQUIRE_THAT(error_of(announce(announce(start, 1), 11), limits), Catch::Contains("a key of 11 bytes"));
  }
  std::string set(1, '\x0b');
  put_i64(set, 3);
  put_bytes(set, "k1");
  REQUIRE_THAT(error_of(announce(set, 21), limits),
               Catch::Contains("MULTI_SET announces a value of 21 bytes"));
  put_bytes(set, std::string(20, 'v'));
  put_bytes(set, "k2");
  REQUIRE_THAT(error_of(announce(set, 20), limits), Catch::Contains("longer than the limit of 70 bytes"));
}

TEST_CASE("the default limits are those of PyTorch's libuv daemon") {
  const auto set = [](std::size_t key_bytes, std::size_t value_bytes) {
    return encoded(
        {.op = Op::kSet, .key = std::string(key_bytes, 'k'), .value = std::string(value_bytes, 'v')});
  };
  REQUIRE(error_of(set(8192, 8388608)).empty());
  REQUIRE_FALSE(error_of(set(8193, 0)).empty());
  REQUIRE_FALSE(error_of(set(1, 8388609)).empty());
  const std::vector<std::string_view> keys(131073, "k");
  REQUIRE(error_of(encoded({.op = Op::kCheck, .items = std::span(keys).first(131072)})).empty());
  REQUIRE_FALSE(error_of(encoded({.op = Op::kCheck, .items = keys})).empty());
}

TEST_CASE("an error is kept: later bytes are not looked at") {
  Decoder decoder{Limits{}};
  Request request;
  std::string_view input = "\xff";
  REQUIRE(decoder.next(input, request) == Decoder::Step::kError);
  const std::string good = kValidate;
  input = good;
  REQUIRE(decoder.next(input, request) == Decoder::Step::kError);
  REQUIRE(decoder.error() == "first byte 0xff begins no TCPStore request");
}
