// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/control.h"

#include <random>

#include "tests/support/catch.h"
#include "tests/support/seed.h"

using namespace muster;
using namespace muster::control;

namespace {

std::vector<Message> one_of_each() {
  Join join;
  join.request.id = {0x0123456789abcdef, 42};
  join.request.host = "n1";
  join.request.machine = "m";
  join.request.order = 3;
  join.request.addresses = {"10.0.0.1", "fe80::1"};
  join.request.master_port = 65535;
  join.request.unhealthy = "a full disk";
  join.settings.min_nodes = 2;
  join.settings.max_nodes = 4;
  join.settings.grow_at_safe_point = true;
  join.resume = 7;
  join.request.program = "train.py";
  join.request.status_address = "[::]:9200";
  join.age = Millis(90'000);
  Assignment assignment;
  assignment.generation = std::int64_t{1} << 40;
  assignment.master_addresses = {"10.0.0.1"};
  assignment.master_host = "n1";
  assignment.peer_addresses = {"10.0.0.2", "fe80::2"};
  assignment.peer_port = 4712;
  assignment.peer_host = "n2";
  membership::Cause cause;
  cause.kind = membership::Cause::Kind::kNodeLost;
  cause.rank = -1;
  cause.exit_code = -9;
  cause.text = "gone\n";
  return {Start{"job", "n1", {1, 2, 3}},
          Challenge{true, {4}},
          Proof{{5}},
          Welcome{{6}, 5000, "muster"},
          Refused{Refused::Reason::kOver, "the job is over"},
          join,
          Ready{1, 2, {1, 7}},
          Heartbeat{},
          assignment,
          Waiting{1, 2, 3, true, "1 of 2 to 3 nodes", {"10.0.0.7"}, 4711, "n7", Millis(540'000)},
          GenerationOver{7, 1, cause},
          Closed{cause},
          WorkerFailed{7, 3, 139, false, true, "SIGSEGV", {2, 140}},
          Finished{7},
          SafePoint{7},
          Report{7, "n1", 0, std::string("\0\xff", 2)},
          Leave{"done"},
          Stop{130, "SIGINT", true},
          StoreAttach{3, 77, 2},
          StoreAttached{3, 77},
          StoreRefused{3, "generation 3 is over"},
          StoreOpen{9, 1234567890123},
          StoreRequest{9, 6, 5, true, std::string("\0\xff", 2)},
          StoreAnswer{9, 6, true, "five"},
          StoreClose{9, "GET while it waits"},
          Clock{1, 2, std::int64_t{3} << 40},
          SafePointPassed{7},
          Hang{7, Hang::Kind::kRequestSnapshot, 2, "host-a", 3, "{}"},
          Notice{"n2 runs head.py"},
          Query{"train", "swift-otter", 1000},
          JobState{"train",  JobState::Phase::kRestarting,
                   3,        1,
                   5,        60,
                   1,        2,
                   3,        64,
                   64,       4,
                   61,       488,
                   12'345,   -1,
                   2,        140,
                   0,        "61/64 nodes",
                   "host-a", "10.0.0.1",
                   29'501,   "10.0.0.1:9200"},
          NodeState{7, "host-b", NodeState::State::kAway, 3, 24, 8, -1, "trainer", 1500, "10.0.0.7",
                    "its connection broke", "10.0.0.7:9200"},
          QueryEnd{3, 64, true, "train", 1000, "muster 0.1.0", "the disk is full"},
          StopWorkers{7, 3},
          Status{7, Status::Kind::kRequestStatus, Millis(30'000), "host-a", 0, "17"}};
}

std::vector<Message> decode_all(Decoder& decoder, std::string_view bytes) {
  std::vector<Message> out;
  Message message;
  while (true) {
    const auto step = decoder.next(bytes, message);
    if (step == Decoder::Step::kMessage) out.push_back(message);
    if (step == Decoder::Step::kNeedMore || step == Decoder::Step::kError) return out;
  }
}

std::string with_preamble(std::string_view frames) {
  std::string out;
  encode(Preamble{}, out);
  out += frames;
  return out;
}

}  // namespace

TEST_CASE("every message is read as it was written") {
  const auto messages = one_of_each();
  REQUIRE(messages.size() == std::variant_size_v<Message>);
  std::string bytes;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    REQUIRE(messages[i].index() == i);
    encode(messages[i], bytes);
  }
  Decoder decoder;
  REQUIRE(decode_all(decoder, with_preamble(bytes)) == messages);
}

TEST_CASE("bytes may arrive in any pieces") {
  const auto messages = one_of_each();
  std::string bytes;
  for (const Message& message : messages) encode(message, bytes);
  bytes = with_preamble(bytes);
  std::mt19937 random(muster::test::seed());
  for (int round = 0; round < 200; ++round) {
    Decoder decoder;
    std::vector<Message> out;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % (round % 40 + 1), bytes.size() - at);
      for (auto& message : decode_all(decoder, std::string_view(bytes).substr(at, size)))
        out.push_back(message);
      at += size;
    }
    REQUIRE(out == messages);
  }
}

TEST_CASE("the bytes are those of the format") {
  std::string bytes;
  encode(Preamble{1, 1}, bytes);
  encode(Message(Ready{258, 4711, {1, 515}}), bytes);
  encode(Message(Leave{"bye"}), bytes);
  REQUIRE(bytes ==
          std::string("\xABmuster\x01\x01"
                      "\x1b\0\0\0\x07\x02\x01\0\0\0\0\0\0\x67\x12\x01\0\0\0\0\0\0\0\x03\x02\0\0\0\0\0\0"
                      "\x0c\0\0\0\x11\x03\0\0\0\0\0\0\0bye",
                      9 + 31 + 16));
}

TEST_CASE("an announced length beyond the limit is refused before its bytes come") {
  Decoder decoder{1000};
  REQUIRE(decode_all(decoder, with_preamble(std::string_view("\xe9\x03\0\0", 4))).empty());
  REQUIRE(decoder.error() == "a frame of 1001 bytes is announced, the limit is 1000");
}

TEST_CASE("what the format does not allow is refused and stays refused") {
  const auto error_of = [](std::string_view frames) {
    Decoder decoder;
    REQUIRE(decode_all(decoder, with_preamble(frames)).empty());
    Message message;
    std::string more;
    encode(Message(Heartbeat{}), more);
    std::string_view input(more);
    REQUIRE((decoder.error().empty() || decoder.next(input, message) == Decoder::Step::kError));
    return decoder.error();
  };
  REQUIRE(error_of({"\0\0\0\0", 4}) == "an empty frame");
  REQUIRE(error_of({"\x01\0\0\0\0", 5}) == "unknown message type 0");
  REQUIRE(error_of({"\x01\0\0\0\xff", 5}) == "unknown message type 255");
  REQUIRE(error_of({"\x02\0\0\0\x08x", 6}) == "Heartbeat: 1 bytes too many");
  REQUIRE(error_of({"\x03\0\0\0\x07xx", 7}) == "Ready: it ends within a field");
  REQUIRE(error_of({"\x0a\0\0\0\x05\x63\0\0\0\0\0\0\0\0", 14}) == "Refused: a number that means nothing");
  REQUIRE(error_of({"\x09\0\0\0\x11\xff\xff\xff\xff\xff\xff\xff\xff", 13}) ==
          "Leave: it ends within a field");
  REQUIRE(error_of({"\x02\0\0\0\x08", 5}).empty());
}

TEST_CASE("other protocols are recognised by their first bytes") {
  for (const std::string_view bytes :
       {std::string_view("GET / HTTP/1.1\r\n"), std::string_view("\x16\x03\x01", 3),
        std::string_view("\0\xce\xf7\x85\x3c", 5), std::string_view("\xABmuSTER")}) {
    Decoder decoder;
    REQUIRE(decode_all(decoder, bytes).empty());
    REQUIRE(decoder.error() == "no muster control connection");
  }
}

TEST_CASE("the version is one that both speak") {
  REQUIRE(choose_version({1, 1}) == 0);
  REQUIRE(choose_version({2, 2}) == 0);
  REQUIRE(choose_version({3, 3}) == 0);
  REQUIRE(choose_version({4, 4}) == 0);
  REQUIRE(choose_version({5, 5}) == 0);
  REQUIRE(choose_version({6, 6}) == 0);
  REQUIRE(choose_version({7, 7}) == 7);
  REQUIRE(choose_version({1, 9}) == 7);
  REQUIRE(choose_version({8, 9}) == 0);
  REQUIRE(choose_version({0, 0}) == 0);
}
