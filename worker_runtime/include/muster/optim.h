// SPDX-License-Identifier: Apache-2.0
// Sgd: PyTorch's SGD with momentum, Nesterov's or not, and clipping by the gradients' global norm, over the
// whole parameter arena in one kernel; bit-equal to torch.optim.SGD on the CPU. One per model and rank, used
// by the model's thread. Its state is one arena of the same layout as the parameters.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <muster/nn.h>
#include <muster/result.h>

namespace muster {
namespace kernels {
struct SgdState;
struct NormSums;
}  // namespace kernels

struct SgdOptions {
  float lr = 0.001F;
  float momentum = 0.9F;
  float weight_decay = 0.0F;
  bool nesterov = false;  ///< needs a momentum
  float max_grad_norm =
      0.0F;  ///< clip_grad_norm_(parameters, max_grad_norm) before each step; 0: no clipping
  friend bool operator==(const SgdOptions&, const SgdOptions&) = default;
};

class Sgd {
 public:
  /// `model` must be allocated and outlive the optimizer. kInvalidArgument: an option that is negative or not
  /// finite.
  [[nodiscard]] static Result<Sgd> create(nn::Model& model, const SgdOptions& options);

  /// Sends the options and `grad_scale` to the device, unless they are there already. To be called before a
  /// step that may be captured or replayed, which reads them there.
  void prepare(float grad_scale = 1.0F);
  /// prepare(); then applies the gradient arena, times `grad_scale`, to the parameters.
  void step(float grad_scale = 1.0F);

  [[nodiscard]] const SgdOptions& options() const { return options_; }
  /// Whether the next step is the first, which starts the momentum buffer.
  [[nodiscard]] bool is_first_step() const { return first_step_; }
  void set_lr(float lr) { options_.lr = lr; }

  /// The momentum buffer on the host, for checkpoints. Empty before the first step, when there is none.
  [[nodiscard]] std::vector<float> read_velocity() const;
  /// Continues from a saved buffer; empty: the next step is the first.
  void write_velocity(std::span<const float> velocity);

 private:
  Sgd(nn::Model& model, const SgdOptions& options, float* velocity, kernels::SgdState* state)
      : model_(&model), options_(options), velocity_(velocity), state_(state) {}

  struct Sent {
    SgdOptions options;
    float grad_scale;
    bool first_step;
    friend bool operator==(const Sent&, const Sent&) = default;
  };

  nn::Model* model_;
  SgdOptions options_;
  float* velocity_;                    // arena_elements(), device memory
  kernels::NormSums* norm_ = nullptr;  // device memory, with max_grad_norm
  kernels::SgdState* state_;           // device memory
  std::optional<Sent> sent_;           // what *state_ holds once the work before it is done
  bool first_step_ = true;             // PyTorch's buffer starts as the first gradient, not as zero
};

}  // namespace muster
