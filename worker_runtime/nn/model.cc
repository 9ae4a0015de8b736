// SPDX-License-Identifier: Apache-2.0
// Model: the layout of the parameter arena, its initialisation and its life on a device.
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include <muster/check.h>
#include <muster/nn.h>

#include "worker_runtime/kernels/kernels.h"

namespace muster::nn {
namespace {

/// The bound of PyTorch's uniform_(-bound, bound), computed in double in the same order as torch.nn.init
/// does.
double init_bound(Init init, std::int64_t fan_in) {
  const auto fan = static_cast<double>(fan_in);
  if (init == Init::kFanInUniform) return 1.0 / std::sqrt(fan);
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1.0 + slope * slope));
  return std::sqrt(3.0) * (gain / std::sqrt(fan));
}

}  // namespace

Result<Model> Model::create(const Shape& input, std::vector<NamedLayer> layers) {
  Model model;
  model.input_ = input;
  Shape shape = input;
  std::set<std::string> names;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    NamedLayer& named = layers[i];
    auto output = named.layer->configure(shape);
    if (!output)
      return fail("layer " + std::to_string(i) + " '" + named.name + "'", std::move(output).error());
    shape = *std::move(output);
    model.shapes_.push_back(shape);
    for (ParameterSpec& spec : named.layer->parameters()) {
      Parameter parameter;
      parameter.name = named.name + "." + std::string(spec.suffix);
      if (!names.insert(parameter.name).second)
        return fail(ErrorCode::kInvalidArgument, "two parameters are named '" + parameter.name + "'");
      const std::int64_t count =
          std::accumulate(spec.shape.begin(), spec.shape.end(), std::int64_t{1}, std::multiplies<>());
      parameter.shape = std::move(spec.shape);
      parameter.init = spec.init;
      parameter.fan_in = spec.fan_in;
      parameter.layer = static_cast<int>(i);
      parameter.offset = model.arena_elements_;
      parameter.count = static_cast<std::size_t>(count);
      model.arena_elements_ += (parameter.count + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      model.parameters_.push_back(std::move(parameter));
    }
  }
  if (model.parameters_.empty())
    return fail(ErrorCode::kInvalidArgument, "the model has no parameters to train");
  model.output_ = shape;
  model.layers_ = std::move(layers);
  model.host_params_.assign(model.arena_elements_, 0.0F);
  return model;
}

std::int64_t Model::num_parameters() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += static_cast<std::int64_t>(parameter.count);
  return total;
}

std::int64_t Model::macs_per_sample() const {
  std::int64_t total = 0;
  for (const NamedLayer& named : layers_) total += named.layer->macs();
  return total;
}

void Model::initialize(Generator& generator) {
  std::vector<float> arena(arena_elements_, 0.0F);
  for (const Parameter& parameter : parameters_) {
    const double bound = init_bound(parameter.init, parameter.fan_in);
    generator.uniform(std::span(arena).subspan(parameter.offset, parameter.count), static_cast<float>(-bound),
                      static_cast<float>(bound));
  }
  write_params(arena);
}

Result<void> Model::allocate(const Compute& compute, float* gradient_arena) {
  MUSTER_CHECK(params_ == nullptr, "a model is allocated once");
  MUSTER_TRY(void* const params, compute->allocate(arena_bytes()));
  if (gradient_arena == nullptr) {
    MUSTER_TRY(void* const grads, compute->allocate(arena_bytes()));
    gradient_arena = static_cast<float*>(grads);
  }
  compute_ = compute;
  params_ = static_cast<float*>(params);
  grads_ = gradient_arena;
  compute_->copy_to_device(params_, host_params_.data(), arena_bytes());
  host_params_ = {};
  return {};
}

std::vector<float> Model::read(const float* arena) const {
  if (params_ == nullptr) return host_params_;
  std::vector<float> host(arena_elements_);
  compute_->copy_to_host(host.data(), arena, arena_bytes());
  return host;
}

void Model::write_params(std::span<const float> arena) {
  MUSTER_CHECK(arena.size() == arena_elements_, "an arena of " + std::to_string(arena.size()) +
                                                    " elements, not " + std::to_string(arena_elements_));
  if (params_ == nullptr)
    host_params_.assign(arena.begin(), arena.end());
  else
    compute_->copy_to_device(params_, arena.data(), arena_bytes());
}

Result<Plan*> Model::plan(int batch, Mode mode) {
  MUSTER_CHECK(params_ != nullptr, "plan() before allocate()");
  if (batch < 1) return fail(ErrorCode::kInvalidArgument, "a batch of " + std::to_string(batch) + " samples");
  for (const auto& plan : plans_)
    if (plan->batch_ == batch && plan->mode_ == mode) return plan.get();
  MUSTER_TRY(std::unique_ptr<Plan> made, make_plan(batch, mode));
  plans_.push_back(std::move(made));
  return plans_.back().get();
}

}  // namespace muster::nn
