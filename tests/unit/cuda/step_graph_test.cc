// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/step_graph.h"

#include "tests/support/catch.h"
#include "worker_runtime/core/step_graph_plan.h"

using namespace muster;
using Action = StepGraphPlan::Action;

TEST_CASE("a key is called once, captured once, then replayed") {
  StepGraphPlan plan;
  REQUIRE(plan.next(7).action == Action::kCall);
  REQUIRE(plan.next(7).action == Action::kCapture);
  for (int i = 0; i < 3; ++i) REQUIRE(plan.next(7).action == Action::kReplay);
}

TEST_CASE("two keys that take turns keep their captures") {
  StepGraphPlan plan;
  for (int i = 0; i < 2; ++i) {
    plan.next(1);
    plan.next(2);
  }
  const auto first = plan.next(1), second = plan.next(2);
  REQUIRE(first.action == Action::kReplay);
  REQUIRE(second.action == Action::kReplay);
  REQUIRE(first.slot != second.slot);
}

TEST_CASE("the capture used longest ago gives way to a new key") {
  StepGraphPlan plan;
  for (std::uint64_t key = 0; key < StepGraphPlan::kSlots; ++key) {
    plan.next(key);
    plan.next(key);
  }
  const auto kept = plan.next(0);  // now key 1 is the oldest
  REQUIRE(kept.action == Action::kReplay);
  const auto added = plan.next(99);
  REQUIRE(added.action == Action::kCall);
  REQUIRE(added.slot != kept.slot);
  REQUIRE(plan.next(0).action == Action::kReplay);
  REQUIRE(plan.next(1).action == Action::kCall);  // it gave way
}

TEST_CASE("on the CPU every step is called and its error handed on") {
  const auto steps = make_step_graph(Device::kCpu, nullptr);
  int calls = 0;
  for (int i = 0; i < 3; ++i)
    REQUIRE_OK(steps->run(1, [&]() -> Result<void> {
      ++calls;
      return {};
    }));
  REQUIRE(calls == 3);
  REQUIRE(steps->num_replays() == 0);
  const auto failed = steps->run(1, []() -> Result<void> { return fail(ErrorCode::kTimeout, "late"); });
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().code == ErrorCode::kTimeout);
}

TEST_CASE("keys of different parts, and of the same parts in another order, differ") {
  REQUIRE(step_key({4, 1}) != step_key({1, 4}));
  REQUIRE(step_key({4, 1}) != step_key({4, 2}));
  REQUIRE(step_key({4, 1}) == step_key({4, 1}));
  REQUIRE(step_key({0}) != step_key({0, 0}));
}
