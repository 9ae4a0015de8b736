// SPDX-License-Identifier: Apache-2.0
// Learning rates by step: pure functions, for Sgd::set_lr() before each step. A captured step is replayed
// whatever they return. Source: torch.optim.lr_scheduler in closed form.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace muster {

/// StepLR: `base`, times `gamma` after every `step_size` steps (0: never).
[[nodiscard]] inline float step_lr(float base, std::int64_t step, std::int64_t step_size,
                                   double gamma = 0.1) {
  const std::int64_t decays = step_size > 0 ? step / step_size : 0;
  return static_cast<float>(base * std::pow(gamma, static_cast<double>(decays)));
}

/// CosineAnnealingLR: from `base` at step 0 to `least` at step `steps`, where it stays.
[[nodiscard]] inline float cosine_lr(float base, std::int64_t step, std::int64_t steps, float least = 0) {
  const double part = std::min(1.0, static_cast<double>(step) / static_cast<double>(steps));
  return static_cast<float>(least + (base - least) * (1 + std::cos(std::numbers::pi * part)) / 2);
}

/// LinearLR: what a rate is multiplied with in its first `warm_up` steps, from `first` to 1.
[[nodiscard]] inline float warm_up_factor(std::int64_t step, std::int64_t warm_up, double first = 1.0 / 3) {
  const double part =
      warm_up == 0 ? 1.0 : std::min(1.0, static_cast<double>(step) / static_cast<double>(warm_up));
  return static_cast<float>(first + (1 - first) * part);
}

}  // namespace muster
