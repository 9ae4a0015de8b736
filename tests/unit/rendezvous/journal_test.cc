// SPDX-License-Identifier: Apache-2.0
// The state log's bytes: what is recorded comes back; whatever was cut or changed is noticed.
#include "rendezvous/wal/journal.h"

#include <initializer_list>
#include <random>

#include "rendezvous/store/wire.h"
#include "tests/support/catch.h"
#include "tests/support/hex.h"
#include "tests/support/log_records.h"

using namespace muster;
using namespace muster::test;
using End = journal::Replayed::End;

namespace {

// What a log gives, as text.
struct Heard {
  void operator()(const journal::LogRecord& record) {
    std::visit([this](const auto& each) { note(each); }, record);
  }
  [[nodiscard]] journal::LogSink sink() {
    return [this](const journal::LogRecord& record) { (*this)(record); };
  }

  std::vector<std::string> words;
  std::vector<JobRecord> jobs;

 private:
  void note(const StoreChange& change) {
    constexpr std::string_view kNames[] = {"set", "append", "erase", "push", "pop"};
    say(kNames[static_cast<std::size_t>(change.kind)], change.key, change.value);
  }
  void note(const JobChange& change) {
    if (const auto* recorded = std::get_if<JobRecorded>(&change)) {
      say("job", recorded->job);
      jobs.push_back(recorded->record);
    } else if (const auto* finished = std::get_if<MemberFinished>(&change)) {
      say("finished", finished->job, to_text(finished->node));
    } else if (const auto* made = std::get_if<ProgressMade>(&change)) {
      say("progress", made->job, to_text(made->progress.reached));
    } else if (const auto* gone = std::get_if<NodeGone>(&change)) {
      say("left", gone->job, to_text(gone->node));
    } else {
      say("forgotten", std::get<JobForgotten>(change).job);
    }
  }
  void note(const HostedChange& change) {
    const std::string instance =
        std::to_string(std::visit([](const auto& each) { return each.instance; }, change));
    if (const auto* began = std::get_if<HostedBegan>(&change))
      say(instance + " began", began->job, std::to_string(began->generation));
    else if (const auto* changed = std::get_if<HostedChanged>(&change))
      say(instance + " changed " + std::to_string(static_cast<int>(changed->change.kind)),
          changed->change.key, changed->change.value);
    else if (const auto* done = std::get_if<HostedDone>(&change))
      say(instance + " done " + std::to_string(done->name.node.low), std::to_string(done->name.number),
          std::to_string(done->last.number) + " " + done->last.answer + " " +
              done->last.barrier.value_or("-"));
    else if (const auto* gone = std::get_if<HostedGone>(&change))
      say(instance + " gone " + std::to_string(gone->name.node.low), std::to_string(gone->name.number));
    else
      say("ended", instance);
  }
  void say(std::string_view what, std::string_view name, std::string_view value = {}) {
    words.push_back(std::string(what) + " " + std::string(name) + " " + std::string(value));
  }
};

JobRecord some_job() {
  JobRecord out;
  out.settings.min_nodes = 1;
  out.settings.max_nodes = 2;
  out.settings.max_restarts = 3;
  out.phase = membership::Phase::kRunning;
  out.restarts_used = 2;
  out.world.generation = 7;
  out.world.world_size = 4;
  out.world.slots = {{{1, 2}, "n1", "m1", "default", 0, 2, 0, 0, 4},
                     {{3, 4}, "n2", "m2", "default", {}, 2, 2, 2, 4}};
  out.finished = {{3, 4}};
  out.excluded = {{"m9", Millis(1500)}};
  return out;
}

// A log and where its frames end.
struct Log {
  Log() : bytes(journal::file_header(0x1122334455667788)) { ends.push_back(bytes.size()); }
  void frame(std::initializer_list<journal::LogRecord> records) {
    journal::Encoder encoder;
    for (const journal::LogRecord& each : records) encoder.add(each);
    bytes += encoder.seal(journal::salt_of(bytes), bytes.size());
    ends.push_back(bytes.size());
  }
  std::string bytes;
  std::vector<std::size_t> ends;  // the header's, then each frame's
};

// Every kind of record, several in a frame, no byte of a frame in a sector alone.
Log example() {
  Log log;
  log.frame({set("/k", "value")});
  log.frame({set("/n", "1"), append("/k", " and more"), push("/q", "one")});
  log.frame({of(JobRecorded{"train", some_job()})});
  log.frame({push("/q", "two"), pop("/q"), erase("/n"), of(MemberFinished{"train", {1, 2}}),
             of(ProgressMade{"train", {{}, {1, 40}, true}})});
  const std::string last(700, 'x');
  log.frame({of(JobForgotten{"old"}), set("/last", last)});
  log.frame({of(HostedBegan{99, "train", 7}), of(HostedChanged{99, {StoreChange::Kind::kSet, "/n", "5"}}),
             of(HostedChanged{99, {StoreChange::Kind::kPop, "/q"}}),
             of(HostedDone{99, {{0, 2}, 3}, {41, "five", {}}}),
             of(HostedDone{99, {{0, 2}, 4}, {42, "", "/b"}}), of(HostedGone{99, {{0, 2}, 3}}),
             of(HostedEnded{98})});
  return log;
}

// CRC-32C bit by bit, from its polynomial.
std::uint32_t crc(std::string_view bytes) {
  std::uint32_t out = ~0u;
  for (const char c : bytes) {
    out ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) out = (out & 1) != 0 ? (out >> 1) ^ 0x82F63B78u : out >> 1;
  }
  return ~out;
}

}  // namespace

TEST_CASE("what a log was told it tells again, in order") {
  Heard heard;
  const Log log = example();
  const auto replayed = journal::replay(log.bytes, heard.sink());
  REQUIRE(replayed == journal::Replayed{End::kClean, log.bytes.size(), 6, ""});
  REQUIRE(heard.words ==
          std::vector<std::string>{
              "set /k value", "set /n 1", "append /k  and more", "push /q one", "job train ", "push /q two",
              "pop /q ", "erase /n ", "finished train 00000000000000010000000000000002",
              "progress train epoch 1 step 40", "forgotten old ", "set /last " + std::string(700, 'x'),
              "99 began train 7", "99 changed 0 /n 5", "99 changed 4 /q ", "99 done 2 3 41 five -",
              "99 done 2 4 42  /b", "99 gone 2 3 ", "ended 98 "});
  REQUIRE(heard.jobs == std::vector{some_job()});
}

TEST_CASE("the bytes of a log are those of its description") {
  Log log;
  log.frame({set("/k", "v")});
  REQUIRE(crc("123456789") == 0xE3069283);  // RFC 3720's check value
  const auto u32 = [](std::uint32_t value) {
    std::string out;
    wire::put_u32(out, value);
    return out;
  };
  const std::string head = std::string("MUSTLOG\x01\x88\x77\x66\x55\x44\x33\x22\x11", 16);
  const std::string payload = test::unhex("01 00 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76");
  const std::string length = test::unhex("15 00 00 00 00 00 00 00");
  const std::string offset = test::unhex("14 00 00 00 00 00 00 00");
  const std::string covered = head.substr(8) + offset + length + u32(crc(payload));
  REQUIRE(log.bytes == head + u32(crc(head)) + length + u32(crc(payload)) + u32(crc(covered)) + payload);
}

TEST_CASE("the bytes of each record are those of version 1") {
  // Changed? Then raise kVersion (wal/journal.cc).
  REQUIRE(sip_hash(example().bytes, {}) == 0x7510d6b4b39f68d5);
}

TEST_CASE("a log that ends anywhere gives its whole frames, and is torn where one is not") {
  const Log log = example();
  for (std::size_t size = log.ends[0]; size <= log.bytes.size(); ++size) {
    std::size_t whole = 0;
    while (whole + 1 < log.ends.size() && log.ends[whole + 1] <= size) ++whole;
    // Memory of exactly this size, so that a read beyond it is noticed.
    const std::vector<char> bytes(log.bytes.begin(), log.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    Heard heard;
    const auto replayed = journal::replay({bytes.data(), bytes.size()}, heard.sink());
    CAPTURE(size, replayed.text);
    REQUIRE(replayed.end == (log.ends[whole] == size ? End::kClean : End::kTorn));
    REQUIRE(replayed.good_bytes == log.ends[whole]);
    REQUIRE(replayed.num_frames == whole);
    Heard expected;
    REQUIRE(journal::replay(std::string_view(log.bytes).substr(0, log.ends[whole]), expected.sink()).end ==
            End::kClean);
    REQUIRE(heard.words == expected.words);
  }
  for (std::size_t size = 0; size < log.ends[0]; ++size) {
    Heard heard;
    REQUIRE(journal::replay(std::string_view(log.bytes).substr(0, size), heard.sink()).end == End::kDamaged);
  }
}

TEST_CASE("a tail whose sectors were not all written is torn, whatever else arrived") {
  Log log;
  log.frame({set("/before", "1")});
  const std::size_t good = log.bytes.size();
  log.frame({set("/long", std::string(3000, 'y'))});
  for (std::size_t sector = journal::kSectorBytes; sector < log.bytes.size();
       sector += journal::kSectorBytes) {
    std::string bytes = log.bytes;
    const std::size_t end = std::min(bytes.size(), sector + journal::kSectorBytes);
    std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(sector),
              bytes.begin() + static_cast<std::ptrdiff_t>(end), '\0');
    Heard heard;
    const auto replayed = journal::replay(bytes, heard.sink());
    CAPTURE(sector);
    REQUIRE(replayed.end == End::kTorn);
    REQUIRE(replayed.good_bytes == good);
  }
  // The file had grown, and nothing of the frame was written.
  Heard heard;
  const auto replayed = journal::replay(log.bytes.substr(0, good) + std::string(4096, '\0'), heard.sink());
  REQUIRE(replayed.end == End::kTorn);
  REQUIRE(replayed.good_bytes == good);
  REQUIRE(heard.words == std::vector<std::string>{"set /before 1"});
}

TEST_CASE("a changed byte anywhere is noticed, and the error says in which frame") {
  const Log log = example();
  for (std::size_t at = 0; at < log.bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bytes = log.bytes;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      Heard heard;
      const auto replayed = journal::replay(bytes, heard.sink());
      CAPTURE(at, flip, replayed.text);
      REQUIRE(replayed.end == End::kDamaged);
      std::size_t frame = 0;
      while (frame + 1 < log.ends.size() && log.ends[frame + 1] <= at) ++frame;
      if (at < log.ends[0]) continue;
      REQUIRE(replayed.good_bytes == log.ends[frame]);
      REQUIRE(replayed.text.find(std::to_string(log.ends[frame])) != std::string::npos);
      REQUIRE(replayed.num_frames == frame);
    }
  }
}

TEST_CASE("a frame of another log, or from another place of this one, is no frame") {
  Log log;
  log.frame({set("/a", "1")});
  const std::string frame = log.bytes.substr(log.ends[0]);
  Heard heard;
  auto replayed = journal::replay(log.bytes + frame, heard.sink());
  REQUIRE(replayed.end == End::kDamaged);
  REQUIRE(replayed.good_bytes == log.ends[1]);
  replayed = journal::replay(journal::file_header(5) + frame, heard.sink());
  REQUIRE(replayed.end == End::kDamaged);
  REQUIRE(replayed.num_frames == 0);
}

TEST_CASE("a value that looks like a frame does not make a torn tail an error") {
  Log inner;
  inner.frame({set("/a", "1")});
  Log log;
  log.frame({set("/v", inner.bytes)});
  for (std::size_t size = log.ends[0] + 1; size < log.bytes.size(); ++size) {
    Heard heard;
    REQUIRE(journal::replay(std::string_view(log.bytes).substr(0, size), heard.sink()).end == End::kTorn);
  }
}

TEST_CASE("files of other kinds and versions are refused in words") {
  Heard heard;
  REQUIRE_THAT(journal::replay("", heard.sink()).text, Catch::Contains("no state log"));
  REQUIRE_THAT(journal::replay("{\"this\": \"is something else entirely\"}", heard.sink()).text,
               Catch::Contains("no state log"));
  std::string newer = journal::file_header(1);
  newer[7] = 9;
  REQUIRE_THAT(journal::replay(newer, heard.sink()).text, Catch::Contains("version 9"));
  Log log;
  log.frame({set("/a", "1")});
  journal::Encoder encoder;
  encoder.add(erase("x"));
  std::string frame(encoder.seal(journal::salt_of(log.bytes), log.bytes.size()));
  REQUIRE(journal::replay(log.bytes + frame, heard.sink()).end == End::kClean);
}

TEST_CASE("a store that is told what another did becomes the same") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    StoreCore live;
    Log log;
    journal::Encoder encoder;
    live.record_to(into(encoder));
    for (int step = 0; step < 400; ++step) {
      const std::string key = "/k" + std::to_string(random() % 7);
      const std::string value(random() % 20, static_cast<char>('a' + random() % 26));
      switch (random() % 8) {
        case 0:
          live.set(key, value);
          break;
        case 1:
          live.append(key, value);
          break;
        case 2:
          (void)live.compare_set(key, random() % 2 == 0 ? live.get(key) : "no", value);
          break;
        case 3:
          (void)live.add("/n" + key, static_cast<std::int64_t>(random() % 9) - 4);
          break;
        case 4:
          live.delete_key(key);
          break;
        case 5:
          live.queue_push(key, value);
          break;
        case 6:
          live.queue_pop(key);
          break;
        default:
          (void)live.barrier(1, "/b" + key, 3);
          break;
      }
      if (random() % 3 == 0 && !encoder.empty()) {
        log.bytes += encoder.seal(journal::salt_of(log.bytes), log.bytes.size());
        encoder.clear();
      }
    }
    if (!encoder.empty()) log.bytes += encoder.seal(journal::salt_of(log.bytes), log.bytes.size());

    RecoveredState saved;
    REQUIRE(journal::replay(log.bytes, saved.sink()).end == End::kClean);
    const auto contents = [](const StoreCore& core) {
      Heard heard;
      core.describe(heard.sink());
      // Keys come in no order, elements of one queue in theirs.
      std::stable_sort(heard.words.begin(), heard.words.end(), [](auto& a, auto& b) {
        return a.substr(0, a.rfind(' ')) < b.substr(0, b.rfind(' '));
      });
      return heard.words;
    };
    REQUIRE(contents(saved.store) == contents(live));
    REQUIRE_FALSE(contents(live).empty());
  }
}
