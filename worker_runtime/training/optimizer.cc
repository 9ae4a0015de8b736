// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <muster/check.h>
#include <muster/optim.h>

#include "worker_runtime/kernels/kernels.h"

namespace muster {
namespace {

bool is_valid(float option) {
  return std::isfinite(option) && option >= 0;
}

}  // namespace

Result<Sgd> Sgd::create(nn::Model& model, const SgdOptions& options) {
  if (!is_valid(options.lr) || !is_valid(options.momentum) || !is_valid(options.weight_decay) ||
      !is_valid(options.max_grad_norm))
    return fail(ErrorCode::kInvalidArgument,
                "SGD: lr, momentum, weight_decay and max_grad_norm must be finite and not negative");
  if (options.nesterov && options.momentum == 0)
    return fail(ErrorCode::kInvalidArgument, "SGD: nesterov needs a momentum");
  MUSTER_CHECK(model.params() != nullptr, "an optimizer needs an allocated model");
  MUSTER_TRY(void* const velocity, model.compute()->allocate(model.arena_bytes()));
  MUSTER_TRY(void* const state, model.compute()->allocate(sizeof(kernels::SgdState)));
  Sgd made(model, options, static_cast<float*>(velocity), static_cast<kernels::SgdState*>(state));
  if (options.max_grad_norm > 0) {
    MUSTER_TRY(void* const norm, model.compute()->allocate(sizeof(kernels::NormSums)));
    made.norm_ = static_cast<kernels::NormSums*>(norm);
  }
  return made;
}

void Sgd::prepare(float grad_scale) {
  const Sent wanted{options_, grad_scale, first_step_};
  if (sent_ == wanted) return;
  model_->compute()->set_sgd_state(
      state_,
      {{options_.lr, options_.momentum, options_.weight_decay, options_.nesterov}, grad_scale, first_step_});
  sent_ = wanted;
}

void Sgd::step(float grad_scale) {
  prepare(grad_scale);
  if (norm_ != nullptr)
    model_->compute()->clip_by_norm(model_->grads(), model_->arena_elements(), options_.max_grad_norm, norm_,
                                    state_);
  model_->compute()->sgd_step(model_->params(), model_->grads(), velocity_, model_->arena_elements(), state_);
  first_step_ = false;
}

std::vector<float> Sgd::read_velocity() const {
  if (first_step_) return {};
  std::vector<float> host(model_->arena_elements());
  model_->compute()->copy_to_host(host.data(), velocity_, model_->arena_bytes());
  return host;
}

void Sgd::write_velocity(std::span<const float> velocity) {
  first_step_ = velocity.empty();
  if (first_step_) return;
  MUSTER_CHECK(velocity.size() == model_->arena_elements(), "a momentum buffer of another model");
  model_->compute()->copy_to_device(velocity_, velocity.data(), model_->arena_bytes());
}

}  // namespace muster
