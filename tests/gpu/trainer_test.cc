// SPDX-License-Identifier: Apache-2.0
// The trainer's captured steps on a GPU, alone and with gradients that two NCCL ranks average.
#include "tests/gpu/nccl_ranks.h"
#include "tests/support/trainer_run.h"

using namespace muster;
using namespace muster::testing;

namespace {

Result<TrainerRun::Outcome> train(Member& member, bool capture) {
  TrainerRun run;
  MUSTER_OK(run.start(member.kernels->device(), *member.group, capture));
  return run.run();
}

std::string captured_equals_called(Member& member, int size) {
  const auto called = train(member, false);
  if (!called) return text_of(called.error());
  const auto captured = train(member, true);
  if (!captured) return text_of(captured.error());
  EXPECT(captured->same_results(*called));
  EXPECT(called->num_replays == 0);
  EXPECT(captured->num_replays == TrainerRun::replays(size));
  EXPECT(captured->losses.back() < captured->losses.front());
  return "";
}

}  // namespace

TEST_CASE("a trainer that replays its steps on a GPU computes the same bits as one that calls them") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    return captured_equals_called(member, 1);
  });
}

TEST_CASE(
    "a GPU trains on a loader's batches, copied beside its steps, to the bits of the resident data set") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    const auto resident = train(member, false);
    if (!resident) return text_of(resident.error());
    for (const Feed feed : {Feed::kBytes, Feed::kFloats})
      for (const bool capture : {false, true}) {
        TrainerRun run;
        STEP(run.start(member.kernels->device(), *member.group, capture, 8, feed));
        const auto loaded = run.run();
        if (!loaded) return text_of(loaded.error());
        EXPECT(loaded->same_results(*resident));
        EXPECT(loaded->num_replays == (capture ? TrainerRun::replays(1) : 0));
      }
    return "";
  });
}

TEST_CASE(
    "trainers of two NCCL ranks that replay their steps compute the same bits as those that call them") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 2));
    return captured_equals_called(member, 2);
  });
}
