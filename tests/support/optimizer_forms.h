// SPDX-License-Identifier: Apache-2.0
// The updates of optimizers element by element: what vectors and GPUs are compared with.
#pragma once

#include "worker_runtime/optim/update.h"

namespace muster::testing {

inline void sgd_elements(const SgdOptions& options, const StepState& state, float* params, const float* grads,
                         float* velocity, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k)
    optim::sgd_element(options, state, params[k], grads[k], velocity[k]);
}

inline void adamw_elements(const AdamWOptions& options, const StepState& state, float* params,
                           const float* grads, float* exp_avg, float* exp_avg_sq, std::size_t count) {
  const optim::AdamWFactors factors = optim::adamw_factors(options, state);
  for (std::size_t k = 0; k < count; ++k)
    optim::adamw_element(factors, params[k], grads[k], exp_avg[k], exp_avg_sq[k]);
}

}  // namespace muster::testing
