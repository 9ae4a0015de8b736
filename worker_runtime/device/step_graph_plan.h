// SPDX-License-Identifier: Apache-2.0
// StepGraphPlan: what to do with the next step of a key: call it, capture it, or replay slot i; after
// give_up(), call it. Pure; step_graph.cc obeys. Keeps kSlots captures; the one used longest ago gives way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace muster {

class StepGraphPlan {
 public:
  static constexpr std::size_t kSlots = 4;
  enum class Action { kCall, kCapture, kReplay };
  struct Decision {
    Action action = Action::kCall;
    std::size_t slot = 0;  // of the key; with kCall its former capture, if any, is to be dropped
    friend bool operator==(const Decision&, const Decision&) = default;
  };

  Decision next(std::uint64_t key) {
    if (gave_up_) return {Action::kCall, 0};
    ++clock_;
    std::size_t oldest = 0;
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots_[i];
      if (slot.seen > 0 && slot.key == key) {
        slot.last_used = clock_;
        if (slot.seen == 1) {
          slot.seen = 2;
          return {Action::kCapture, i};
        }
        return {Action::kReplay, i};
      }
      if (slot.last_used < slots_[oldest].last_used) oldest = i;
    }
    slots_[oldest] = {key, 1, clock_};
    return {Action::kCall, oldest};
  }

  /// A capture failed: one that failed for this key would fail for the next.
  void give_up() { gave_up_ = true; }

 private:
  struct Slot {
    std::uint64_t key = 0;
    int seen = 0;                 // 0: empty, 1: called once, 2: captured
    std::uint64_t last_used = 0;  // 0: never
  };
  std::array<Slot, kSlots> slots_{};
  std::uint64_t clock_ = 0;
  bool gave_up_ = false;
};

}  // namespace muster
