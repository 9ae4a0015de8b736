// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/step_graph.h"

#include "tests/support/catch.h"

using namespace muster;
using Action = StepGraphPlan::Action;

namespace {

/// Says what it was told to do.
class ToldRecorder final : public StepRecorder {
 public:
  explicit ToldRecorder(std::string& log) : log_(log) {}
  bool lost = false;

  Result<void> record(std::size_t slot, const Step& step) override {
    log_ += "record" + std::to_string(slot) + " ";
    return step();
  }
  Result<void> replay(std::size_t slot) override {
    log_ += "replay" + std::to_string(slot) + " ";
    return {};
  }
  Result<void> mark(std::size_t which) override {
    log_ += "mark" + std::to_string(which) + " ";
    return {};
  }
  Result<void> wait(std::size_t which) override {
    log_ += "wait" + std::to_string(which) + " ";
    if (!lost) return {};
    return fail(ErrorCode::kFailed, "the device is lost");
  }
  void drop(std::size_t slot) override { log_ += "drop" + std::to_string(slot) + " "; }

 private:
  std::string& log_;
};

const StepGraph::Step kFine = []() -> Result<void> { return {}; };
const StepGraph::Step kBroken = []() -> Result<void> { return fail(ErrorCode::kMismatch, "shapes differ"); };

}  // namespace

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

TEST_CASE("after giving up every step is called") {
  StepGraphPlan plan;
  plan.next(1);
  plan.next(1);
  plan.give_up();
  for (const std::uint64_t key : {1U, 1U, 2U, 2U, 2U}) REQUIRE(plan.next(key).action == Action::kCall);
}

TEST_CASE("a step is called, recorded and replayed, then only replayed") {
  std::string log;
  const auto steps = std::make_unique<StepGraph>(std::make_unique<ToldRecorder>(log));
  for (int i = 0; i < 4; ++i) REQUIRE_OK(steps->run(7, kFine));
  REQUIRE(log == "drop0 record0 replay0 replay0 replay0 ");
  REQUIRE(steps->num_replays() == 2);
}

TEST_CASE("the host waits when it is two times kRunAhead replays ahead of the device") {
  std::string log;
  auto owned = std::make_unique<ToldRecorder>(log);
  ToldRecorder& recorder = *owned;
  const auto steps = std::make_unique<StepGraph>(std::move(owned));
  std::string marks;
  std::uint64_t unbounded = 0;  // replays since the last mark that was waited for
  for (std::uint64_t i = 0; i < 2 + 4 * StepGraph::kRunAhead; ++i) {
    log.clear();
    REQUIRE_OK(steps->run(7, kFine));
    ++unbounded;
    for (const char* word : {"mark0 ", "mark1 ", "wait0 ", "wait1 "})
      if (log.find(word) != std::string::npos) marks += word;
    if (log.find("wait") != std::string::npos) unbounded = StepGraph::kRunAhead;
    REQUIRE(unbounded <= 2 * StepGraph::kRunAhead + 2);
  }
  REQUIRE(marks == "mark1 mark0 wait1 mark1 wait0 mark0 wait1 ");
  recorder.lost = true;
  for (std::uint64_t i = 1; i < StepGraph::kRunAhead; ++i) REQUIRE_OK(steps->run(7, kFine));
  const auto failed = steps->run(7, kFine);
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().message == "the device is lost");
}

TEST_CASE("a capture that fails is said once, and its step and all later ones are called") {
  std::string log, reasons;
  StepGraphHooks hooks;
  hooks.on_give_up = [&](const Error& reason) { reasons += reason.message + ";"; };
  const auto steps = std::make_unique<StepGraph>(std::make_unique<ToldRecorder>(log), hooks);
  int calls = 0;
  const auto fails_once = [&]() -> Result<void> {
    if (++calls == 2) return fail(ErrorCode::kFailed, "not in a capture");
    return {};
  };
  for (int i = 0; i < 4; ++i) REQUIRE_OK(steps->run(7, fails_once));
  REQUIRE(calls == 5);  // the second step twice
  REQUIRE(reasons == "not in a capture;");
  REQUIRE(log.find("replay") == std::string::npos);
  REQUIRE(log.find("drop0 record0 drop0 drop1 drop2 drop3 ") == 0);
  REQUIRE(steps->num_replays() == 0);
}

TEST_CASE("a capture that another rank lacks is not launched") {
  std::string log, reasons;
  std::vector<bool> asked;
  StepGraphHooks hooks;
  hooks.agree = [&](bool captured_here) -> Result<bool> {
    asked.push_back(captured_here);
    return false;
  };
  hooks.on_give_up = [&](const Error& reason) { reasons += reason.message; };
  const auto steps = std::make_unique<StepGraph>(std::make_unique<ToldRecorder>(log), hooks);
  for (int i = 0; i < 4; ++i) REQUIRE_OK(steps->run(7, kFine));
  REQUIRE(asked == std::vector<bool>{true});
  REQUIRE(reasons == "another rank cannot capture its step");
  REQUIRE(log.find("replay") == std::string::npos);
}

TEST_CASE("where the ranks cannot agree the step fails, with what went wrong first") {
  for (const bool captures : {true, false}) {
    std::string log;
    StepGraphHooks hooks;
    hooks.agree = [](bool) -> Result<bool> { return fail(ErrorCode::kPeerGone, "rank 1 is gone"); };
    const auto steps = std::make_unique<StepGraph>(std::make_unique<ToldRecorder>(log), hooks);
    REQUIRE_OK(steps->run(7, kFine));
    const auto failed = steps->run(7, captures ? kFine : kBroken);
    REQUIRE_FALSE(failed);
    REQUIRE(failed.error().code == (captures ? ErrorCode::kPeerGone : ErrorCode::kMismatch));
    REQUIRE(log.find("replay") == std::string::npos);
  }
}

TEST_CASE("an error of the step is the step's, captured or not") {
  std::string log;
  const auto steps = std::make_unique<StepGraph>(std::make_unique<ToldRecorder>(log));
  REQUIRE_OK(steps->run(7, kFine));
  const auto failed = steps->run(7, kBroken);
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error() == Error{ErrorCode::kMismatch, "shapes differ"});
}

TEST_CASE("without a recorder every step is called and its error handed on") {
  const auto steps = std::make_unique<StepGraph>(nullptr);
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
