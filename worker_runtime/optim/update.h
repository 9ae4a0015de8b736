// SPDX-License-Identifier: Apache-2.0
// The arithmetic of optimizers, once: what a step does before its update, and an update of one element. The
// same functions on a GPU, for the remainder of a vector loop, and as the reference of the tests. Each
// operation rounds where it stands, so that all devices give the same bits.
#pragma once

#include <muster/optim.h>

#include "worker_runtime/ops/portable.h"

namespace muster::optim {

using namespace nn::cuda;  // MUSTER_HD's roundings

/// Of clipping and GradScaler; a growth interval of 0: no scaler.
struct BeginOptions {
  float max_grad_norm;
  float growth_factor, backoff_factor;
  std::int32_t growth_interval;
};

/// Sums that a GPU's blocks make of the gradients' squares.
inline constexpr int kSums = 256;

/// `squares`: the sum of the gradients' squares; not read without clipping and scaler. A norm that is not
/// finite gives a factor that is not, as clip_grad_norm_ does, unless a scaler skips the step. Source:
/// torch.nn.utils.clip_grad_norm_, torch.amp.GradScaler.
MUSTER_HD void begin_step(const BeginOptions& o, double squares, StepState& s) {
  const bool scales = o.growth_interval > 0;
  s.found_inf = scales && !std::isfinite(squares) ? 1 : 0;
  s.factor = s.grad_scale;
  if (scales) s.factor *= static_cast<float>(1 / static_cast<double>(s.loss_scale));
  if (o.max_grad_norm > 0) {
    const double clip =
        o.max_grad_norm / (std::sqrt(squares) * std::fabs(static_cast<double>(s.factor)) + 1e-6);
    if (!(clip >= 1)) s.factor *= static_cast<float>(clip);
  }
  if (s.found_inf == 0) ++s.steps;
  if (!scales) return;
  if (s.found_inf != 0) {
    s.loss_scale *= o.backoff_factor;
    s.growth_tracker = 0;
  } else if (++s.growth_tracker >= o.growth_interval) {
    const auto grown = static_cast<float>(static_cast<double>(s.loss_scale) * o.growth_factor);
    if (std::isfinite(grown)) s.loss_scale = grown;
    s.growth_tracker = 0;
  }
}

MUSTER_HD void sgd_element(const SgdOptions& o, const StepState& s, float& param, float grad,
                           float& velocity) {
  float g = mul_rounded(grad, s.factor);
  if (o.weight_decay != 0) g = fma_rounded(o.weight_decay, param, g);
  const float v = s.momentum == 0 ? g : add_rounded(mul_rounded(s.momentum, velocity), g);
  velocity = v;
  param = fma_rounded(-s.lr, o.nesterov ? fma_rounded(s.momentum, v, g) : v, param);
}

/// What all elements of a step of AdamW share.
struct AdamWFactors {
  float grad, decay, weight1, beta2, beta2_rest, step_size, correction2, eps;
  bool near_grad;  // as torch's lerp: the average is counted from whichever of it and the gradient is nearer
};

MUSTER_HD AdamWFactors adamw_factors(const AdamWOptions& o, const StepState& s) {
  const double lr = s.lr, beta1 = s.momentum, beta2 = o.beta2, steps = static_cast<double>(s.steps);
  const auto rest1 = static_cast<float>(1 - beta1);
  return {s.factor,
          static_cast<float>(1 - lr * static_cast<double>(o.weight_decay)),
          rest1 >= 0.5F ? rest1 - 1 : rest1,
          o.beta2,
          static_cast<float>(1 - beta2),
          static_cast<float>(lr / (1 - std::pow(beta1, steps))),
          static_cast<float>(std::sqrt(1 - std::pow(beta2, steps))),
          o.eps,
          rest1 >= 0.5F};
}

MUSTER_HD void adamw_element(const AdamWFactors& f, float& param, float grad, float& exp_avg,
                             float& exp_avg_sq) {
  const float g = mul_rounded(grad, f.grad), p = mul_rounded(param, f.decay);
  const float m = add_rounded(f.near_grad ? g : exp_avg, mul_rounded(f.weight1, add_rounded(g, -exp_avg)));
  const float v = add_rounded(mul_rounded(exp_avg_sq, f.beta2), mul_rounded(f.beta2_rest, mul_rounded(g, g)));
  const float denominator = add_rounded(std::sqrt(v) / f.correction2, f.eps);
  exp_avg = m;
  exp_avg_sq = v;
  param = add_rounded(p, -mul_rounded(f.step_size, m / denominator));
}

// On the CPU, by vectors; `state.found_inf` is 0.
void sgd_update(const SgdOptions& options, const StepState& state, float* params, const float* grads,
                float* velocity, std::size_t count);
void adamw_update(const AdamWOptions& options, const StepState& state, float* params, const float* grads,
                  float* exp_avg, float* exp_avg_sq, std::size_t count);

/// A copy of the parameters in a half type, beside them; nullptr: none.
struct HalfCopy {
  std::uint16_t* to = nullptr;
  DType dtype = DType::kBFloat16;
};

namespace cuda {  // update.cu; each enqueues and returns a cudaError_t
/// state's lr, momentum, grad_scale and factor. The values travel as the kernel's arguments.
int send_state(StepState* state, float lr, float momentum, float grad_scale, void* stream);
/// begin_step(). `sums`: kSums doubles; nullptr where nothing asks for them.
int begin(const BeginOptions& options, const float* grads, std::size_t count, double* sums, StepState* state,
          void* stream);
int sgd(const SgdOptions& options, const StepState* state, float* params, const float* grads, float* velocity,
        std::size_t count, void* stream, const HalfCopy& half = {});
int adamw(const AdamWOptions& options, const StepState* state, float* params, const float* grads,
          float* exp_avg, float* exp_avg_sq, std::size_t count, void* stream, const HalfCopy& half = {});
}  // namespace cuda

}  // namespace muster::optim
