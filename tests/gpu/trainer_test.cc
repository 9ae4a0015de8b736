// SPDX-License-Identifier: Apache-2.0
// The trainer's captured steps on a GPU, alone and with gradients that two NCCL ranks average.
#include "tests/gpu/nccl_ranks.h"
#include "tests/support/trainer_run.h"

using namespace muster;
using namespace muster::testing;

namespace {

Result<TrainerRun::Outcome> train(Member& member, bool capture, DType autocast) {
  TrainerRun run(autocast);
  MUSTER_OK(run.start(member.kernels->device(), *member.group, capture));
  return run.run();
}

std::string captured_equals_called(Member& member, int size, DType autocast = DType::kFloat32) {
  const auto called = train(member, false, autocast);
  if (!called) return text_of(called.error());
  const auto captured = train(member, true, autocast);
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
    for (const DType autocast : {DType::kFloat32, DType::kBFloat16})
      if (const std::string wrong = captured_equals_called(member, 1, autocast); !wrong.empty()) return wrong;
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
