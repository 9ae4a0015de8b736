// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <numeric>

#include <muster/check.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/optim/update.h"

namespace muster {
namespace {

/// In double, by many sums: one addition need not wait for the last.
double sum_of_squares(const float* values, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<double>(values[i + lane]) * values[i + lane];
  double total = 0;
  for (; i < count; ++i) total += static_cast<double>(values[i]) * values[i];
  return std::accumulate(sums.begin(), sums.end(), total);
}

Result<void> check_options(std::string_view name,
                           std::initializer_list<std::pair<const char*, float>> options) {
  for (const auto& [option, value] : options)
    if (!(std::isfinite(value) && value >= 0))
      return invalid("{}: {} is {}; it must be finite and not negative", name, option, value);
  return {};
}

}  // namespace

Result<void> Optimizer::start(std::string_view name, const Options& options) {
  MUSTER_OK(check_options(name, {{"lr", options.lr}, {"max_grad_norm", options.max_grad_norm}}));
  MUSTER_CHECK(model_->params() != nullptr, "an optimizer needs an allocated model");
  name_ = name;
  const Compute& compute = model_->compute();
  for (std::size_t i = 0; i < arena_names().size(); ++i) {
    MUSTER_TRY(float* const arena, compute->allocate_of<float>(model_->arena_elements()));
    arenas_.push_back(arena);
  }
  MUSTER_TRY(state_, compute->allocate_of<StepState>());
  const StepState first;
  compute->copy_to_device(state_, &first, sizeof first);
  options_ = options;
  wanted_ = {options.lr, options.momentum, 1};
  if (options.max_grad_norm == 0) return {};
  MUSTER_TRY(sums_, compute->allocate_of<double>(optim::kSums));
  return {};
}

Result<void> Optimizer::use_grad_scaler(const GradScalerOptions& options) {
  if (!(options.init_scale > 0 && std::isfinite(options.init_scale) && options.growth_factor > 1 &&
        std::isfinite(options.growth_factor) && options.backoff_factor > 0 && options.backoff_factor < 1 &&
        options.growth_interval > 0))
    return invalid(
        "GradScaler: init_scale must be positive, growth_factor above 1, backoff_factor within 0 and 1, "
        "growth_interval at least 1");
  if (sums_ == nullptr) {
    MUSTER_TRY(void* const sums, model_->compute()->allocate(optim::kSums * sizeof(double)));
    sums_ = static_cast<double*>(sums);
  }
  scaler_ = options;
  model_->compute()->copy_to_device(&state_->loss_scale, &options.init_scale, sizeof(float));
  return {};
}

void Optimizer::prepare(float grad_scale) {
  wanted_.grad_scale = grad_scale;
  if (sent_ == wanted_) return;
  model_->compute()->enqueue_call(*this, [](const Optimizer& self) { self.send(); });
  sent_ = wanted_;
}

void Optimizer::send() const {
  if constexpr (kHasCuda) {
    const Compute& compute = model_->compute();
    if (compute->stream() != nullptr)
      return compute->report_cuda(optim::cuda::send_state(state_, wanted_.lr, wanted_.momentum,
                                                          wanted_.grad_scale, compute->stream()),
                                  "learning rate");
  }
  state_->lr = wanted_.lr;
  state_->momentum = wanted_.momentum;
  state_->grad_scale = state_->factor = wanted_.grad_scale;
}

void Optimizer::step(float grad_scale) {
  const TraceRange range(*model_->compute(), "optimizer", "optimizer");
  prepare(grad_scale);
  model_->compute()->enqueue_call(*this, [](const Optimizer& self) { self.run(); });
}

void Optimizer::run() const {
  const Compute& compute = model_->compute();
  const float* const grads = model_->grads();
  const std::size_t count = model_->arena_elements();
  const GradScalerOptions scaler = scaler_.value_or(GradScalerOptions{.growth_interval = 0});
  const optim::BeginOptions options{options_.max_grad_norm, scaler.growth_factor, scaler.backoff_factor,
                                    scaler.growth_interval};
  void* const stream = compute->stream();
  const DeviceType device = stream != nullptr ? DeviceType::kCuda : DeviceType::kCpu;
  Update work{device, stream, model_->params(), grads, count, arenas_, state_};
  if (writes_half_params()) {
    work.half_params = model_->half_params();
    work.half_dtype = model_->autocast();
  }
  const bool begins = sums_ != nullptr || options_.counts_steps;
  if constexpr (kHasCuda) {
    if (stream != nullptr) {
      if (begins)
        compute->report_cuda(optim::cuda::begin(options, grads, count, sums_, state_, stream), "optimizer");
      compute->report_cuda(update(work), "optimizer");
      if (work.half_params == nullptr) model_->round_params();
      return;
    }
  }
  if (begins) optim::begin_step(options, sums_ == nullptr ? 0 : sum_of_squares(grads, count), *state_);
  if (state_->found_inf != 0) return;
  (void)update(work);
  model_->round_params();
}

OptimizerState Optimizer::read_state() const {
  const Compute& compute = model_->compute();
  StepState state;
  compute->copy_to_host(&state, state_, sizeof state);
  OptimizerState saved{{}, state.steps, scaler_ ? state.loss_scale : 0, state.growth_tracker};
  for (const float* const arena : arenas_) {
    saved.arenas.emplace_back(model_->arena_elements());
    compute->copy_to_host(saved.arenas.back().data(), arena, model_->arena_bytes());
  }
  return saved;
}

void Optimizer::write_state(const OptimizerState& saved) {
  const Compute& compute = model_->compute();
  StepState state;
  state.loss_scale = scaler_ ? scaler_->init_scale : 1.0F;
  if (!saved.arenas.empty()) {
    MUSTER_CHECK(saved.arenas.size() == arenas_.size(), "the state of another optimizer");
    state.steps = saved.steps;
    if (scaler_ && saved.loss_scale > 0) state.loss_scale = saved.loss_scale;
    state.growth_tracker = saved.growth_tracker;
  }
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    if (saved.arenas.empty()) {
      compute->zero(arenas_[i], model_->arena_bytes());
      continue;
    }
    MUSTER_CHECK(saved.arenas[i].size() == model_->arena_elements(), "an optimizer's state of another model");
    compute->copy_to_device(arenas_[i], saved.arenas[i].data(), model_->arena_bytes());
  }
  compute->copy_to_device(state_, &state, sizeof state);
  sent_.reset();
}

Result<std::unique_ptr<Sgd>> Sgd::create(nn::Model& model, const SgdOptions& options) {
  MUSTER_OK(check_options("SGD", {{"momentum", options.momentum}, {"weight_decay", options.weight_decay}}));
  if (options.nesterov && options.momentum == 0) return invalid("SGD: nesterov needs a momentum");
  std::unique_ptr<Sgd> made(new Sgd(model, options));
  MUSTER_OK(made->start("SGD", {options.lr, options.momentum, options.max_grad_norm}));
  return made;
}

std::span<const std::string_view> Sgd::arena_names() const {
  static constexpr std::array<std::string_view, 1> kNames{"momentum"};
  return kNames;
}

int Sgd::update(const Update& u) const {
  if constexpr (kHasCuda)
    if (u.device == DeviceType::kCuda)
      return optim::cuda::sgd(options_, u.state, u.params, u.grads, u.arenas[0], u.count, u.stream,
                              {u.half_params, u.half_dtype});
  optim::sgd_update(options_, *u.state, u.params, u.grads, u.arenas[0], u.count);
  return 0;
}

Result<std::unique_ptr<AdamW>> AdamW::create(nn::Model& model, const AdamWOptions& options) {
  MUSTER_OK(check_options("AdamW", {{"eps", options.eps}, {"weight_decay", options.weight_decay}}));
  if (options.eps == 0) return invalid("AdamW: eps is 0, which divides a gradient of 0 by 0; try 1e-8");
  for (const float beta : {options.beta1, options.beta2})
    if (!(beta >= 0 && beta < 1))
      return invalid("AdamW: beta1 and beta2 must be at least 0 and below 1, one is {}", beta);
  std::unique_ptr<AdamW> made(new AdamW(model, options));
  MUSTER_OK(made->start("AdamW", {options.lr, options.beta1, options.max_grad_norm, true}));
  return made;
}

std::span<const std::string_view> AdamW::arena_names() const {
  static constexpr std::array<std::string_view, 2> kNames{"exp_avg", "exp_avg_sq"};
  return kNames;
}

int AdamW::update(const Update& u) const {
  if constexpr (kHasCuda)
    if (u.device == DeviceType::kCuda)
      return optim::cuda::adamw(options_, u.state, u.params, u.grads, u.arenas[0], u.arenas[1], u.count,
                                u.stream, {u.half_params, u.half_dtype});
  optim::adamw_update(options_, *u.state, u.params, u.grads, u.arenas[0], u.arenas[1], u.count);
  return 0;
}

}  // namespace muster
