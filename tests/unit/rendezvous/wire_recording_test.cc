// SPDX-License-Identifier: Apache-2.0
// Replays what real clients of two generations of PyTorch sent to their own servers: ours must answer with
// the same bytes, and our encoder must send what those clients send.
#include "tests/support/wire_recording.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/store/wire.h"
#include "rendezvous/store/wire_decoder.h"
#include "tests/support/catch.h"
#include "tests/support/hex.h"
#include "tests/support/sessions.h"

using namespace muster;
using namespace muster::wire;
using muster::test::hex;
using muster::test::read_wire_recording;
using muster::test::Sessions;
using muster::test::WireEvent;
using State = Session::State;

namespace {

struct Recording {
  const char* name;
  Generation generation;
  bool one_at_a_time;  // no request was under way on another connection, except waits
};

constexpr Recording kRecordings[] = {
    {"torch-1.13-store", Generation::kTorch20, true},
    {"torch-1.13-group", Generation::kLegacy, false},  // nothing in it tells 2.0 from 2.1
    {"torch-2.14-store", Generation::kModern, true},
    {"torch-2.14-threaded-store", Generation::kModern, true},
    {"torch-2.14-group", Generation::kModern, false},
};

// The keys of a LIST_KEYS answer, whose order is unspecified; anything else as it is.
std::multiset<std::string> comparable(const std::string& request, const std::string& reply) {
  if (request != "\x11") return {hex(reply)};
  std::multiset<std::string> keys;
  for (std::size_t at = 8; at < reply.size();) {
    const std::size_t size = load_u64(reply.data() + at);
    keys.insert(reply.substr(at + 8, size));
    at += 8 + size;
  }
  REQUIRE(keys.size() == load_u64(reply.data()));
  return keys;
}

// How the bytes of a request arrive.
enum class Arrival { kAsRecorded, kByteByByte, kCutAtRandom };

class Replay {
 public:
  Replay(const Recording& recording, Arrival arrival) : recording_(recording), arrival_(arrival) {
    const std::vector<WireEvent> events = read_wire_recording(recording.name);
    for (const WireEvent& event : events)
      while (clients_.size() <= event.connection) clients_.push_back(Client{sessions_.open(), {}, {}, {}});
    for (std::size_t i = 0; i < events.size(); ++i) {
      INFO(recording.name << ", event " << i << ": connection " << events[i].connection);
      step(events[i]);
    }
    for (Client& client : clients_) {
      collect(client);
      REQUIRE(hex(client.unread) == "");
    }
  }

  [[nodiscard]] Generation generation(std::size_t connection) const {
    return sessions_.session(clients_[connection].id).generation();
  }

 private:
  struct Client {
    ClientId id;
    std::string unread;  // what our session answered and the recorded server has not yet
    std::string last_request;
    State state;
  };

  void step(const WireEvent& event) {
    Client& client = clients_[event.connection];
    if (event.direction == '>') {
      // A client that goes on has had its answer; with one at a time nobody else is owed any either.
      for (Client& other : clients_) {
        if (&other != &client && !recording_.one_at_a_time) continue;
        collect(other);
        REQUIRE(hex(other.unread) == "");
      }
      feed(client, event.bytes);
      client.last_request = event.bytes;
    } else if (event.direction == '<') {
      if (client.state == State::kUndecided) client.state = sessions_.settle(client.id);
      collect(client);
      REQUIRE(client.unread.size() >= event.bytes.size());
      const std::string answer = client.unread.substr(0, event.bytes.size());
      client.unread.erase(0, event.bytes.size());
      REQUIRE(comparable(client.last_request, answer) == comparable(client.last_request, event.bytes));
    }
  }

  void feed(Client& client, std::string_view bytes) {
    while (!bytes.empty()) {
      std::size_t size = bytes.size();
      if (arrival_ == Arrival::kByteByByte) size = 1;
      if (arrival_ == Arrival::kCutAtRandom) size = 1 + random_() % bytes.size();
      client.state = sessions_.feed(client.id, bytes.substr(0, size));
      REQUIRE((client.state == State::kNeedInput || client.state == State::kUndecided));
      bytes.remove_prefix(size);
    }
  }

  void collect(Client& client) { client.unread += sessions_.take(client.id); }

  Recording recording_;
  Arrival arrival_;
  Sessions sessions_;
  std::vector<Client> clients_;
  std::minstd_rand random_{7};
};

}  // namespace

TEST_CASE("recorded clients of both generations get the answers that their own servers gave") {
  for (const Recording& recording : kRecordings) {
    for (const Arrival arrival : {Arrival::kAsRecorded, Arrival::kByteByByte, Arrival::kCutAtRandom}) {
      const Replay replay(recording, arrival);
      REQUIRE(replay.generation(0) == recording.generation);
    }
  }
}

TEST_CASE("requests are encoded to the bytes that recorded clients sent") {
  std::map<Generation, std::set<Op>> seen;
  for (const Recording& recording : kRecordings) {
    std::map<std::size_t, std::string> sent;
    for (const WireEvent& event : read_wire_recording(recording.name))
      if (event.direction == '>') sent[event.connection] += event.bytes;
    const Generation generation =
        recording.generation == Generation::kModern ? Generation::kModern : Generation::kTorch20;
    for (const auto& [connection, bytes] : sent) {
      INFO(recording.name << ", connection " << connection);
      Decoder decoder({}, Generation::kTorch20);
      std::string_view input = bytes;
      std::string encoded;
      Request request;
      while (decoder.next(input, request) == Decoder::Step::kRequest) {
        encode(request, encoded, generation);
        seen[generation].insert(request.op);
      }
      REQUIRE(hex(encoded) == hex(bytes));
    }
  }
  // Every operation there is was recorded; of 1.13 all but WATCH_KEY, and CHECK, which Python cannot call.
  std::set<Op> modern;
  for (std::size_t op = 0; op < kNumOps; ++op) modern.insert(static_cast<Op>(op));
  REQUIRE(seen[Generation::kModern] == modern);
  REQUIRE(seen[Generation::kTorch20] == std::set<Op>{Op::kSet, Op::kCompareSet, Op::kGet, Op::kAdd, Op::kWait,
                                                     Op::kGetNumKeys, Op::kDeleteKey});
}
