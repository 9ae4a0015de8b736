// SPDX-License-Identifier: Apache-2.0
// musterd --state-dir under everything that clients can ask of a store, killed at random moments, and its log
// cut at random bytes: what was acknowledged is there, once; what was not is there or not, and never half.
// MUSTER_SEED repeats a run, as far as the operating system does.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "rendezvous/wal/journal.h"
#include "tests/support/catch.h"
#include "tests/support/kept_musterd.h"
#include "tests/support/store_writer.h"

using namespace muster;
using namespace muster::test;
using wire::Op;

namespace {

// Takes elements that all put into one queue: whoever gets one, it is got once.
struct SharedQueue {
  static constexpr std::string_view kName = "/shared";

  void push(RawClient& client) {
    const std::string element = std::to_string(next++);
    client.send({.op = Op::kQueuePush, .key = kName, .value = element});
    unsure.insert(element);
  }
  // A round trip after it: it is acknowledged.
  void confirm(RawClient& client) {
    REQUIRE(client.alive());
    pushed.merge(unsure);
  }
  void ask(RawClient& client) {
    client.send({.op = Op::kQueuePop, .key = kName});
    ++asked;
  }
  // The answers to all that was asked for, as far as they came.
  void hear(std::string_view answers) {
    std::size_t at = 0;
    while (asked > 0 && answers.size() >= at + 8) {
      if (wire::load_u64(answers.data() + at) == 0) {
        at += 8;
      } else {
        if (answers.size() < at + 16) break;
        const std::size_t size = wire::load_u64(answers.data() + at + 8);
        if (answers.size() < at + 16 + size) break;
        take(std::string(answers.substr(at + 16, size)));
        at += 16 + size;
      }
      --asked;
    }
  }
  void take(const std::string& element) {
    CAPTURE(element);
    REQUIRE(taken.insert(element).second);
    REQUIRE((pushed.contains(element) || unsure.contains(element)));
  }
  // After a restart: takes the rest.
  void settle(RawClient& client) {
    const std::size_t before = taken.size();
    int last = -1;
    for (const std::string& element : empty_queue(client, kName)) {
      take(element);
      REQUIRE(std::stoi(element) > last);  // oldest first
      last = std::stoi(element);
    }
    // An element can have gone with an answer that nobody got.
    std::size_t missing = 0;
    for (const std::string& element : pushed) missing += taken.contains(element) ? 0 : 1;
    CAPTURE(before, taken.size());
    REQUIRE(missing <= asked);
    pushed.clear();
    unsure.clear();
    asked = 0;
  }

  int next = 0;
  std::size_t asked = 0;
  std::set<std::string> pushed, unsure, taken;
};

}  // namespace

TEST_CASE("of every operation that changes a store, what was acknowledged outlives a kill, once and whole") {
  const unsigned number = seed();
  CAPTURE(number);
  std::mt19937 random(number);
  // Small, so that the log is rewritten in the middle of it all.
  KeptMusterd keeper({"--state-rewrite-min-bytes", "20000"});
  const auto header = [&] {
    std::ifstream file(keeper.log_path(), std::ios::binary);
    std::string out(journal::kFileHeaderBytes, '\0');
    file.read(out.data(), static_cast<std::streamsize>(out.size()));
    return out;
  };
  const std::string first_header = header();
  std::vector<StoreWriter> writers;
  for (const char* name : {"/a/", "/b/", "/c/"}) writers.emplace_back(name);
  SharedQueue shared;
  std::map<Op, int> kept;
  std::size_t unanswered = 0;
  for (int round = 0; round < 16; ++round) {
    CAPTURE(round);
    for (StoreWriter& writer : writers) {
      writer.connect(keeper.port());
      writer.requests = writer.script.write(120, random, 4000);
    }
    RawClient pusher = RawClient::modern(keeper.port());
    RawClient popper = RawClient::modern(keeper.port());
    // What a third party is told of a change before the end holds afterwards.
    RawClient watcher = RawClient::modern(keeper.port());
    std::vector<std::size_t> watched;  // whose progress
    const std::size_t num_pieces = 1 + random() % 40;
    for (std::size_t piece = 0; piece < num_pieces; ++piece) {
      const std::size_t whose = random() % writers.size();
      StoreWriter& writer = writers[whose];
      writer.send(1 + random() % 20);
      shared.push(pusher);
      if (piece % 3 == 0) shared.confirm(pusher);
      if (piece % 2 == 0) shared.ask(popper);
      const std::string progress = writer.script.progress();
      watcher.send({.op = Op::kGet, .key = progress});
      watched.push_back(whose);
      // By now some of what was sent is done; or by chance nothing.
      if (random() % 4 == 0) {
        const std::size_t size = writer.answers_to(writer.sent);
        writer.receive_until(random() % (size + 1));
      }
    }
    keeper.kill();
    for (StoreWriter& writer : writers) {
      writer.drain();
      writer.compare_answers();
      unanswered += writer.sent - writer.acknowledged;
    }
    const auto rest_of = [](RawClient& client) {
      StoreWriter ending("");
      ending.client.emplace(std::move(client));
      ending.drain();
      return ending.received;
    };
    shared.hear(rest_of(popper));
    const std::string seen = rest_of(watcher);
    keeper.start();

    RawClient reader = RawClient::modern(keeper.port());
    for (StoreWriter& writer : writers) {
      for (std::size_t i = 0; i < writer.acknowledged; ++i) ++kept[writer.requests[i].op];
      writer.adopt(read_contents(reader, writer.script), writer.acknowledged);
    }
    std::string_view answers = seen;
    for (const std::size_t whose : watched) {
      if (answers.size() < 8) break;
      const std::size_t size = wire::load_u64(answers.data());
      if (answers.size() < 8 + size) break;
      const std::string told(answers.substr(8, size));
      answers.remove_prefix(8 + size);
      if (told.empty()) continue;
      CAPTURE(whose, told);
      REQUIRE(std::stoll(told) <= std::stoll(writers[whose].contents.keys[writers[whose].script.progress()]));
    }
    shared.settle(reader);
  }
  // Each kill may have cut a rewrite off: the last musterd lives until it has made one.
  RawClient last = RawClient::modern(keeper.port());
  const Instant deadline = SteadyClock::now() + std::chrono::seconds(20);
  while (header() == first_header && SteadyClock::now() < deadline) {
    last.send({.op = Op::kSet, .key = "/last", .value = std::string(4000, 'x')});
    REQUIRE(last.alive());
  }
  REQUIRE(header() != first_header);
  std::printf("acknowledged and kept:");
  for (const Op op : kChanging) {
    std::printf(" %s %d", std::string(op_info(op).name).c_str(), kept[op]);
    CAPTURE(op_info(op).name);
    REQUIRE(kept[op] > 0);
  }
  std::printf("; %zu were sent and not acknowledged; %zu of a shared queue were taken\n", unanswered,
              shared.taken.size());
}

namespace {

StoreContents contents_of(const StoreCore& core) {
  StoreContents out;
  core.describe([&](const StoreChange& change) {
    if (change.kind == StoreChange::Kind::kSet)
      out.keys[std::string(change.key)] = change.value;
    else
      out.queues[std::string(change.key)].emplace_back(change.value);
  });
  return out;
}

}  // namespace

TEST_CASE("a log that ends at any byte holds the work of whole requests, the first ones") {
  const unsigned number = seed();
  CAPTURE(number);
  std::mt19937 random(number);
  KeptMusterd keeper;
  StoreWriter writer("/a/");
  writer.connect(keeper.port());
  writer.requests = writer.script.write(400, random, 2000);
  while (writer.sent < writer.requests.size()) {
    writer.send(1 + random() % 8);
    // Some of them meet in one frame.
    if (random() % 2 == 0) writer.receive_until(writer.answers_to(writer.sent));
  }
  writer.receive_until(writer.answers_to(writer.sent));
  REQUIRE(writer.client->alive());
  writer.compare_answers();
  keeper.kill();
  std::ifstream stream(keeper.log_path(), std::ios::binary);
  const std::string file(std::istreambuf_iterator<char>(stream), {});
  REQUIRE(file.size() > 10'000);

  std::vector<StoreContents> prefixes(1);
  for (const ScriptedRequest& request : writer.requests) {
    prefixes.push_back(prefixes.back());
    (void)apply(request, prefixes.back());
  }
  std::set<std::size_t> ends = {journal::kFileHeaderBytes, file.size()};
  while (ends.size() < 300)
    ends.insert(journal::kFileHeaderBytes + random() % (file.size() - journal::kFileHeaderBytes));
  std::size_t steps = 0, cut_short = 0;
  for (const std::size_t end : ends) {
    CAPTURE(end, file.size(), steps);
    RecoveredState state;
    const journal::Replayed replayed = journal::replay(std::string_view(file).substr(0, end), state.sink());
    REQUIRE(replayed.end != journal::Replayed::End::kDamaged);
    cut_short += replayed.end == journal::Replayed::End::kTorn ? 1 : 0;
    const StoreContents found = contents_of(state.store);
    while (prefixes[steps] != found) REQUIRE(++steps < prefixes.size());
  }
  REQUIRE(prefixes.back() == prefixes[steps]);
  REQUIRE(cut_short > 0);
}
