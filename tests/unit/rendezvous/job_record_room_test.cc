// SPDX-License-Identifier: Apache-2.0
// How large the record of a job may be, and who is left out of it.
#include "rendezvous/coordinator/job_record.h"
#include "tests/support/catch.h"

using namespace muster;
using membership::Phase;

TEST_CASE("a record with a world of 9000 nodes and all that is told later fits into a request to etcd") {
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
    INFO(members << " members");
    for (std::uint64_t i = 0; i < kMaxKnown; ++i) record.known.push_back({2, i});
    // The most that follows: all have gone, with eight generations and a long reason.
    record.phase = Phase::kClosed;
    for (const auto& slot : record.world.slots) record.has_gone(slot.node);
    record.gone.insert(record.gone.end(), record.known.begin(), record.known.end());
    for (int i = 1; i < 8; ++i) record.progress.steps.note(i, {0, 1}, true);
    record.ending.text.assign(4096, 'x');
    std::string bytes;
    encode(record, bytes);
    REQUIRE(bytes.size() + 3 * 1024 + 256 <= kEtcdBytes);  // two keys of a job's name in %XX, and the rest
    const std::size_t gone = record.gone.size();
    record.has_gone({3, 3});  // of one that was left out
    REQUIRE(record.gone.size() == gone);
  }
}
