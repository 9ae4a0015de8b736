// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/stall_ledger.h"

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Lines = std::vector<StallLedger::Line>;

Instant at(int seconds) {
  return Instant(std::chrono::seconds(1000 + seconds));
}

}  // namespace

TEST_CASE("a wait is said once when it is long, and again when it is over, with its length") {
  StallLedger ledger;
  const StallLedger::Wait wait{3, "whoever reads stdout (/dev/pts/1)", false, at(0)};
  for (int second = 1; second < 5; ++second) REQUIRE(ledger.look({wait}, at(second)).empty());
  REQUIRE(ledger.look({wait}, at(5)) ==
          Lines{{"rank 3 has waited 5 s so far for whoever reads stdout (/dev/pts/1)", false}});
  REQUIRE(ledger.look({wait}, at(6)).empty());
  REQUIRE(ledger.look({}, at(14)) ==
          Lines{{"rank 3 waited 14 s for whoever reads stdout (/dev/pts/1)", false}});
  REQUIRE(ledger.look({}, at(15)).empty());
}

TEST_CASE("a short wait is not worth a word") {
  StallLedger ledger;
  REQUIRE(ledger.look({{0, "a", false, at(0)}}, at(4)).empty());
  REQUIRE(ledger.look({}, at(6)).empty());
  REQUIRE(ledger.look({{0, "a", false, at(7)}}, at(8)).empty());
}

TEST_CASE("ranks that wait for the same are one line, and disks are told apart") {
  StallLedger ledger;
  const std::vector<StallLedger::Wait> waits{
      {9, "a", false, at(1)}, {4, "a", false, at(0)}, {5, "a", false, at(4)}, {6, "the disk", true, at(0)}};
  REQUIRE(ledger.look(waits, at(5)) == Lines{{"ranks 4-5,9 have waited 5 s so far for a", false},
                                             {"rank 6 has waited 5 s so far for the disk", true}});
}

TEST_CASE("ranks are listed with their spans") {
  REQUIRE(rank_list({0}) == "rank 0");
  REQUIRE(rank_list({0, 1, 2, 7}) == "ranks 0-2,7");
}
