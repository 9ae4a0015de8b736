// SPDX-License-Identifier: Apache-2.0
// Plan: where every activation lies, and the walk over the layers.
#include <algorithm>
#include <array>
#include <numeric>

#include <muster/nn.h>

#include "worker_runtime/kernels/kernels.h"

namespace muster::nn {
namespace {

std::size_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, [](std::size_t product, int dim) {
    return product * static_cast<std::size_t>(dim);
  });
}

/// Hands out offsets; the memory is taken once, when all are known.
class Layout {
 public:
  std::size_t add(std::size_t size_bytes) {
    const std::size_t offset = size_;
    size_ += (size_bytes + 255) / 256 * 256;
    return offset;
  }
  [[nodiscard]] std::size_t size_bytes() const { return size_; }

 private:
  std::size_t size_ = 0;
};

}  // namespace

Result<std::unique_ptr<Plan>> Model::make_plan(int batch, Mode mode) const {
  const bool training = mode == Mode::kTraining;
  const auto rows = static_cast<std::size_t>(batch);
  const std::size_t num_layers = layers_.size();

  std::size_t widest = 0;  // of the outputs
  for (const Shape& shape : shapes_) widest = std::max(widest, elements_of(shape));
  const std::size_t widest_bytes = rows * widest * sizeof(float);

  // Activations are kept for backward when training; gradients of activations, and activations in inference,
  // take two buffers in turn, because a layer touches only its own and its neighbour's.
  Layout layout;
  const std::size_t input_at = layout.add(rows * elements_of(input_) * sizeof(float));
  const std::size_t labels_at = layout.add(rows * sizeof(std::int32_t));
  const std::array<std::size_t, 2> turn_at{layout.add(widest_bytes), layout.add(widest_bytes)};
  std::vector<std::size_t> output_at(num_layers);
  std::vector<std::size_t> scratch_at(num_layers);
  std::vector<std::size_t> turn_of(num_layers);  // which of the two buffers belongs to the layer's output
  std::size_t turn = 0;
  for (std::size_t i = 0; i < num_layers; ++i) {
    const Layer& layer = *layers_[i].layer;
    if (layer.is_view()) {
      output_at[i] = i == 0 ? input_at : output_at[i - 1];
      turn_of[i] = i == 0 ? turn : turn_of[i - 1];
      continue;
    }
    turn_of[i] = turn;
    turn ^= 1U;
    output_at[i] =
        training ? layout.add(rows * elements_of(shapes_[i]) * sizeof(float)) : turn_at[turn_of[i]];
    scratch_at[i] = layout.add(layer.scratch_bytes(batch));
  }
  MUSTER_TRY(void* const memory, compute_->allocate(layout.size_bytes()));
  auto* const base = static_cast<std::uint8_t*>(memory);
  const auto floats = [base](std::size_t offset) { return reinterpret_cast<float*>(base + offset); };

  auto plan = std::make_unique<Plan>();
  plan->mode_ = mode;
  plan->batch_ = batch;
  plan->size_bytes_ = layout.size_bytes();
  plan->first_layer_ = parameters_.front().layer;
  plan->input_ = floats(input_at);
  plan->labels_ = reinterpret_cast<std::int32_t*>(base + labels_at);
  plan->output_ = floats(output_at.back());
  if (training) plan->output_gradient_ = floats(turn_at[turn_of.back()]);
  std::size_t next_parameter = 0;
  for (std::size_t i = 0; i < num_layers; ++i) {
    const Layer& layer = *layers_[i].layer;
    MUSTER_OK(layer.plan(*compute_, batch));
    Frame frame;
    frame.kernels = compute_.get();
    frame.batch = batch;
    frame.x = i == 0 ? plan->input_ : floats(output_at[i - 1]);
    frame.y = floats(output_at[i]);
    frame.scratch = base + scratch_at[i];
    if (training) {
      frame.dy = floats(turn_at[turn_of[i]]);
      // Nothing in front of the first layer with parameters needs a gradient.
      if (static_cast<int>(i) > plan->first_layer_) frame.dx = floats(turn_at[turn_of[i - 1]]);
    }
    for (; next_parameter < parameters_.size() && parameters_[next_parameter].layer == static_cast<int>(i);
         ++next_parameter) {
      frame.params.push_back(params_ + parameters_[next_parameter].offset);
      frame.grads.push_back(grads_ + parameters_[next_parameter].offset);
    }
    plan->layers_.push_back(&layer);
    plan->frames_.push_back(std::move(frame));
  }
  return plan;
}

void Plan::forward() const {
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i]->forward(frames_[i]);
}

void Plan::backward_layer(int layer) const {
  layers_[static_cast<std::size_t>(layer)]->backward(frames_[static_cast<std::size_t>(layer)]);
}

void Plan::backward() const {
  for (int layer = last_layer(); layer >= first_layer(); --layer) backward_layer(layer);
}

}  // namespace muster::nn
