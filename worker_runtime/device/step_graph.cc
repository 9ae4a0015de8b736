// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/step_graph.h"

namespace muster {

Result<void> StepGraph::run(std::uint64_t key, const Step& step, std::uint64_t steps) {
  if (recorder_ == nullptr) return step();
  const StepGraphPlan::Decision next = plan_.next(key);
  if (next.action == StepGraphPlan::Action::kCall) {
    recorder_->drop(next.slot);
    return step();
  }
  if (next.action == StepGraphPlan::Action::kCapture) return capture(next.slot, step);
  MUSTER_OK(recorder_->replay(next.slot));
  num_replays_ += steps;
  unmarked_ += steps;
  if (unmarked_ < kRunAhead) return {};
  unmarked_ = 0;  // and now waits for the mark of so many steps ago
  const std::size_t which = ++marks_ % 2;
  MUSTER_OK(recorder_->mark(which));
  return marks_ == 1 ? Result<void>{} : recorder_->wait(1 - which);
}

Result<void> StepGraph::capture(std::size_t slot, const Step& step) {
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

}  // namespace muster
