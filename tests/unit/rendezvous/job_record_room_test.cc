// SPDX-License-Identifier: Apache-2.0
// How large the record of a job may be, and who is left out of it.
#include <algorithm>

#include "rendezvous/coordinator/job_record.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/kept_table.h"

using namespace muster;
using membership::Phase;
using muster::test::Table;

TEST_CASE("a record leaves room for what is told later, and says how many nodes outside the world fit") {
  constexpr std::size_t kEtcdBytes = 3 << 19;  // --max-request-bytes
  const auto record_of = [](std::uint64_t members) {
    JobRecord out;
    out.settings.max_nodes = out.settings.min_nodes = 9000;
    out.phase = Phase::kRunning;
    for (std::uint64_t i = 0; i < members; ++i)
      out.world.slots.push_back({{1, i},
                                 "node" + std::to_string(i),
                                 std::string(32, 'm'),
                                 "default",
                                 static_cast<int>(i),
                                 8,
                                 0,
                                 0,
                                 8});
    out.progress.steps.note(0, {0, 1}, true);
    return out;
  };
  for (const std::uint64_t members : {1U, 64U, 9000U}) {
    JobRecord record = record_of(members);
    const std::size_t room = room_for_known(record, kMaxRecordBytes);
    INFO(members << " members, room for " << room);
    REQUIRE(room > (members < 1000 ? 47'000 : 4'000));
    for (std::uint64_t i = 0; i < room; ++i) record.known.push_back({2, i});
    // The most that follows: all have gone, with eight generations and a long reason.
    record.phase = Phase::kClosed;
    for (const auto& slot : record.world.slots) record.has_gone(slot.node);
    record.gone.insert(record.gone.end(), record.known.begin(), record.known.end());
    for (int i = 1; i < 8; ++i) record.progress.steps.note(i, {0, 1}, true);
    record.ending.text.assign(4096, 'x');
    std::string bytes;
    encode(record, bytes);
    REQUIRE(bytes.size() <= kMaxRecordBytes + 4096);
    REQUIRE(bytes.size() + 3 * 1024 + 256 <= kEtcdBytes);  // two keys of a job's name in %XX, and the rest
    const std::size_t gone = record.gone.size();
    record.has_gone({3, 3});  // of one that was left out
    REQUIRE(record.gone.size() == gone);
  }
  REQUIRE(room_for_known(record_of(16'000), kMaxRecordBytes) == 0);
}

TEST_CASE("nodes outside the world that do not fit into the record are left out, and that is said once") {
  Table t;
  JobsOptions options;
  options.max_record_bytes = 2000;
  t.jobs = std::make_unique<Jobs>(options);
  t.jobs->record_to(test::into(t.log));
  t.join(1, 1);
  for (std::uint64_t node = 2; node < 100; ++node) t.join(node, 1);
  for (std::uint64_t node = 4; node < 100; ++node) t.jobs->disconnected(node, "eof", t.now, t.effects);
  t.say(1, control::WorkerFailed{0, 0, 9, false, false, "no use"});
  REQUIRE(std::count_if(t.effects.log.begin(), t.effects.log.end(), [](const std::string& line) {
            return line.find("fit into its record of 2000 bytes") != line.npos;
          }) == 1);
  t.crash();
  for (const std::uint64_t node : {2, 3}) {  // who was here comes first
    t.join(node, 1);
    REQUIRE(t.told<control::Closed>(node).size() == 1);
  }
  int refused = 0, told = 0;
  for (std::uint64_t node = 4; node < 100; ++node) {
    t.join(node, 1);
    refused += static_cast<int>(t.told<control::Refused>(node).size());
    told += static_cast<int>(t.told<control::Closed>(node).size());
  }
  REQUIRE(refused + told == 96);
  REQUIRE(told > 10);
  REQUIRE(refused > 10);
}
