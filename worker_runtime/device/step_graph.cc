// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/step_graph.h"

#include <utility>

#include "worker_runtime/device/step_graph_plan.h"

namespace muster {
namespace {

class CalledSteps final : public StepGraph {
 public:
  Result<void> run(std::uint64_t /*key*/, const Step& step, std::uint64_t /*steps*/) override {
    return step();
  }
  std::uint64_t num_replays() const override { return 0; }
};

class RecordedSteps final : public StepGraph {
 public:
  RecordedSteps(std::unique_ptr<StepRecorder> recorder, StepGraphHooks hooks)
      : recorder_(std::move(recorder)), hooks_(std::move(hooks)) {}

  Result<void> run(std::uint64_t key, const Step& step, std::uint64_t steps) override {
    const StepGraphPlan::Decision next = plan_.next(key);
    switch (next.action) {
      case StepGraphPlan::Action::kCall:
        recorder_->drop(next.slot);
        return step();
      case StepGraphPlan::Action::kCapture:
        return capture(next.slot, step);
      case StepGraphPlan::Action::kReplay:
        break;
    }
    MUSTER_OK(recorder_->replay(next.slot));
    num_replays_ += steps;
    return bound_run_ahead(steps);
  }

  std::uint64_t num_replays() const override { return num_replays_; }

 private:
  /// Every kRunAhead steps: waits for the mark of so many steps ago.
  Result<void> bound_run_ahead(std::uint64_t steps) {
    unmarked_ += steps;
    if (unmarked_ < kRunAhead) return {};
    unmarked_ = 0;
    const std::size_t which = ++marks_ % 2;
    MUSTER_OK(recorder_->mark(which));
    return marks_ == 1 ? Result<void>{} : recorder_->wait(1 - which);
  }

  Result<void> capture(std::size_t slot, const Step& step) {
    const Result<void> recorded = recorder_->record(slot, step);
    bool everywhere = recorded.has_value();
    if (hooks_.agree) {
      const Result<bool> agreed = hooks_.agree(everywhere);
      if (!agreed)  // the group is lost, most likely by what went wrong first
        return fail("capture of the training step", recorded ? agreed.error() : recorded.error());
      everywhere = *agreed;
    }
    if (everywhere) return recorder_->replay(slot);
    plan_.give_up();
    for (std::size_t i = 0; i < StepGraphPlan::kSlots; ++i) recorder_->drop(i);
    if (hooks_.on_give_up)
      hooks_.on_give_up(recorded ? Error{ErrorCode::kFailed, "another rank cannot capture its step"}
                                 : recorded.error());
    return step();
  }

  const std::unique_ptr<StepRecorder> recorder_;
  const StepGraphHooks hooks_;
  StepGraphPlan plan_;
  std::uint64_t num_replays_ = 0, unmarked_ = 0, marks_ = 0;
};

}  // namespace

std::unique_ptr<StepGraph> make_step_graph(std::unique_ptr<StepRecorder> recorder, StepGraphHooks hooks) {
  if (recorder == nullptr) return std::make_unique<CalledSteps>();
  return std::make_unique<RecordedSteps>(std::move(recorder), std::move(hooks));
}

}  // namespace muster
