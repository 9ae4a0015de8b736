// SPDX-License-Identifier: Apache-2.0
// Which rank holds up the others, from samples of their progress; and what a line of progress says.
#include "launcher/progress/stragglers.h"

#include "launcher/progress/progress_sample.h"
#include "tests/support/catch.h"

namespace muster::launcher {
namespace {

using namespace std::chrono_literals;

const Instant kStart = Instant{} + 1h;

/// A rank of a synchronous job: `waiting` of its samples are in all_reduce, the others in forward.
RankOfPace rank_of(int rank, int samples, int waiting, double step_s = 0.2) {
  return {rank, {samples, waiting, "forward", step_s}, "node7"};
}

ProgressSample sample_of(const std::string& text) {
  return parse_progress(text + "\n");
}

}  // namespace

TEST_CASE("the rank that waits least for the others is the straggler, with its time per step") {
  std::vector<RankOfPace> ranks;
  for (int rank = 0; rank < 8; ++rank) ranks.push_back(rank_of(rank, 60, rank == 5 ? 0 : 30));
  const auto found = find_straggler(ranks);
  REQUIRE(found);
  CHECK(found->rank == 5);
  CHECK(found->phase == "forward");
  CHECK(found->seconds_per_step == Approx(0.2));
  CHECK(found->percent == Approx(100));
  CHECK(straggler_text(*found) ==
        "rank 5 on node7 spends 0.2 s per step in forward, 100 % more than the median rank; the others wait "
        "for it");
}

TEST_CASE("noise is no straggler, and few samples tell nothing") {
  std::vector<RankOfPace> ranks;
  for (int rank = 0; rank < 64; ++rank) ranks.push_back(rank_of(rank, 60, 30 + (rank * 7) % 13 - 6));
  CHECK_FALSE(find_straggler(ranks));
  ranks = {rank_of(0, kLeastSamples - 1, 0), rank_of(1, kLeastSamples - 1, kLeastSamples / 2)};
  CHECK_FALSE(find_straggler(ranks));
  ranks = {rank_of(0, kLeastSamples, 0), rank_of(1, kLeastSamples, kLeastSamples / 2)};
  REQUIRE(find_straggler(ranks));
  CHECK(find_straggler(ranks)->rank == 0);
  CHECK_FALSE(find_straggler(std::vector<RankOfPace>{rank_of(0, 60, 0)}));
  CHECK_FALSE(find_straggler(std::vector<RankOfPace>{}));
}

TEST_CASE("of 4,096 noisy ranks none is a straggler, and one that never waits is") {
  std::vector<RankOfPace> ranks;
  std::uint32_t state = 1;
  for (int rank = 0; rank < 4096; ++rank) {
    int waiting = 0;
    for (int i = 0; i < 60; ++i) waiting += static_cast<int>((state = state * 1664525 + 1013904223) >> 31);
    ranks.push_back(rank_of(rank, 60, waiting));
  }
  CHECK_FALSE(find_straggler(ranks));
  ranks[77] = rank_of(77, 60, 1);
  REQUIRE(find_straggler(ranks));
  CHECK(find_straggler(ranks)->rank == 77);
}

TEST_CASE("a meter counts phases and the time of a step, over the end of an epoch") {
  PaceMeter meter;
  for (int i = 0; i < 20; ++i)
    meter.add(sample_of("epoch " + std::to_string(i / 10) + " step " + std::to_string(i % 10) + "/10 " +
                        (i % 4 == 0 ? "all_reduce" : "forward")),
              kStart + i * 500ms);
  const RankPace pace = meter.pace();
  CHECK(pace.samples == 20);
  CHECK(pace.waiting == 5);
  CHECK(pace.phase == "forward");
  CHECK(pace.step_s.value() == Approx(0.5));
  // Where the steps of an epoch are not told, another epoch begins anew; so does a worker that went back.
  meter.add(sample_of("epoch 5 step 3"), kStart + 11s);
  CHECK_FALSE(meter.pace().step_s);
  meter.add(sample_of("epoch 5 step 2"), kStart + 12s);
  CHECK(meter.pace().samples == 0);
}

TEST_CASE("numbers that a worker makes up do no harm") {
  PaceMeter meter;
  for (const char* text :
       {"epoch 9223372036854775807 step 9223372036854775807/9223372036854775807 x",
        "epoch 99999999999999999999 step 3", "step 5/0", "step /", "loss", "/s", " /s /s"}) {
    meter.add(sample_of(text), kStart);
    (void)figures_in(text);
    (void)steps_in(text);
  }
  CHECK(meter.pace().samples <= 1);
}

TEST_CASE("loss, throughput and the steps of an epoch are read from a line of progress") {
  CHECK(steps_in("epoch 2/10 step 140/15000 loss 0.31") == 15000);
  CHECK_FALSE(steps_in("step 140 images/s 512"));
  CHECK_FALSE(steps_in("epoch 2/10"));
  const auto check = [](std::string_view text, std::optional<double> loss, std::optional<double> throughput) {
    INFO(text);
    CHECK(figures_in(text).loss == loss);
    CHECK(figures_in(text).throughput == throughput);
  };
  check("epoch 2 step 140/15000 loss 0.31 images/s 512", 0.31, 512);
  check("step 3 loss=1.5e-3, 512.5 tokens/s", 1.5e-3, 512.5);
  check("512 images/s loss: 2", 2, 512);
  check("0.5 s/step, eval loss nan", std::nullopt, std::nullopt);
  check("", std::nullopt, std::nullopt);
}

}  // namespace muster::launcher
