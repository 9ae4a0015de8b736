// SPDX-License-Identifier: Apache-2.0
// Optimizers over a model's parameter arena: Sgd and AdamW, or a program's own. What changes from step to
// step is in device memory (StepState), so a captured step is replayed whatever the learning rate, the loss
// scale or the count of steps. Clipping by the gradients' norm and PyTorch's GradScaler are part of each
// optimizer's step and never ask the host. One per model and rank, used by the model's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/nn.h>
#include <muster/result.h>

namespace muster {

/// Of the step at hand, in device memory.
struct StepState {
  float lr = 0;
  float momentum = 0;    ///< AdamW: beta1
  float grad_scale = 1;  ///< what the gradients are to be multiplied with
  float factor = 1;  ///< what an optimizer multiplies them with: of grad_scale, the loss scale, the clipping
  float loss_scale = 1;             ///< what the loss multiplies its gradient with
  std::int32_t growth_tracker = 0;  ///< steps since the loss scale changed
  std::int32_t found_inf = 0;       ///< not 0: a gradient is not finite, the step must change nothing
  std::int64_t steps = 0;           ///< that changed something, this one included; counted by AdamW
};

/// torch.amp.GradScaler's.
struct GradScalerOptions {
  float init_scale = 65536.0F;
  float growth_factor = 2.0F;
  float backoff_factor = 0.5F;
  std::int32_t growth_interval = 2000;
};

/// What a checkpoint keeps of an optimizer.
struct OptimizerState {
  std::vector<std::vector<float>> arenas;  ///< one per Optimizer::arena_names(), in the parameters' layout
  std::int64_t steps = 0;
  float loss_scale = 0;  ///< 0: there was no GradScaler
  std::int32_t growth_tracker = 0;
  friend bool operator==(const OptimizerState&, const OptimizerState&) = default;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer& operator=(Optimizer&&) = delete;  // nor copied

  /// "SGD"; checkpoints have it, and that of another is refused.
  [[nodiscard]] std::string_view name() const { return name_; }
  /// The names of its state: "momentum". A checkpoint has momentum.conv1.weight.
  [[nodiscard]] virtual std::span<const std::string_view> arena_names() const = 0;
  /// One for each name, device memory in the parameters' layout.
  [[nodiscard]] std::span<float* const> arenas() const { return arenas_; }

  /// Sends the learning rate and `grad_scale` to the device, unless they are there already. To be called
  /// before a step that may be captured or replayed, which reads them there.
  void prepare(float grad_scale = 1.0F);
  /// prepare(); then applies the gradient arena, times `grad_scale`, to the parameters.
  void step(float grad_scale = 1.0F);

  [[nodiscard]] float lr() const { return wanted_.lr; }
  void set_lr(float lr) { wanted_.lr = lr; }

  /// From now on gradients are those of the loss times StepState::loss_scale, as Trainer's loss computes
  /// them; a step with a gradient that is not finite changes nothing and lowers the scale. Before the first
  /// step. kInvalidArgument: a factor that does not grow or shrink.
  [[nodiscard]] Result<void> use_grad_scaler(const GradScalerOptions& options);
  [[nodiscard]] bool has_grad_scaler() const { return scaler_.has_value(); }
  /// Device memory. For a loss of one's own.
  [[nodiscard]] const StepState* step_state() const { return state_; }

  /// On the host, for checkpoints; waits for the device.
  [[nodiscard]] OptimizerState read_state() const;
  /// Continues from a saved state; one without arenas: begins anew.
  void write_state(const OptimizerState& state);

 protected:
  struct Options {
    float lr = 0, momentum = 0;
    float max_grad_norm = 0;
    bool counts_steps = false;  ///< StepState::steps is needed
  };
  /// What update() works on, all in the memory of the device.
  struct Update {
    DeviceType device = DeviceType::kCpu;
    void* stream = nullptr;  ///< cudaStream_t
    float* params = nullptr;
    const float* grads = nullptr;
    std::size_t count = 0;
    std::span<float* const> arenas;  ///< zero at first
    const StepState* state = nullptr;
    std::uint16_t* half_params = nullptr;  ///< Model::half_params(), if writes_half_params()
    DType half_dtype = DType::kBFloat16;
  };
  explicit Optimizer(nn::Model& model) : model_(&model) {}
  /// Takes device memory; called once, by a derived class's create(). kInvalidArgument: an option that is
  /// negative or not finite.
  [[nodiscard]] Result<void> start(std::string_view name, const Options& options);
  /// The new parameters, from gradients times state->factor; nothing if state->found_inf. Only enqueues
  /// where the device is a GPU. Returns a cudaError_t, 0 on the CPU.
  virtual int update(const Update& update) const = 0;
  /// Whether update() on a GPU rounds the new parameters to Update::half_params too where that is there; else
  /// a pass over them does so after it.
  [[nodiscard]] virtual bool writes_half_params() const { return false; }

 private:
  struct Wanted {
    float lr, momentum, grad_scale;
    friend bool operator==(const Wanted&, const Wanted&) = default;
  };
  void send() const;
  void run() const;

  nn::Model* model_;
  std::string name_;
  Options options_;
  std::optional<GradScalerOptions> scaler_;
  std::vector<float*> arenas_;
  StepState* state_ = nullptr;
  double* sums_ = nullptr;  // of the gradients' squares; with clipping or a scaler
  Wanted wanted_{};
  std::optional<Wanted> sent_;  // what *state_ holds once the work before it is done
};

struct SgdOptions {
  float lr = 0.001F;
  float momentum = 0.9F;
  float weight_decay = 0.0F;
  bool nesterov = false;  ///< needs a momentum
  float max_grad_norm =
      0.0F;  ///< clip_grad_norm_(parameters, max_grad_norm) before each step; 0: no clipping
};

/// torch.optim.SGD, with the bits of its CPU form: g += weight_decay * p; v = momentum * v + g; p -= lr * v,
/// or lr * (g + momentum * v) with `nesterov`.
class Sgd final : public Optimizer {
 public:
  /// `model` must be allocated and outlive the optimizer.
  [[nodiscard]] static Result<std::unique_ptr<Sgd>> create(nn::Model& model, const SgdOptions& options);
  [[nodiscard]] std::span<const std::string_view> arena_names() const override;

 private:
  Sgd(nn::Model& model, const SgdOptions& options) : Optimizer(model), options_(options) {}
  int update(const Update& update) const override;
  [[nodiscard]] bool writes_half_params() const override { return true; }
  SgdOptions options_;
};

struct AdamWOptions {
  float lr = 0.001F;
  float beta1 = 0.9F, beta2 = 0.999F;
  float eps = 1e-8F;
  float weight_decay = 0.01F;
  float max_grad_norm = 0.0F;  ///< as SgdOptions'
};

/// torch.optim.AdamW without amsgrad; 1e-6.
class AdamW final : public Optimizer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<AdamW>> create(nn::Model& model, const AdamWOptions& options);
  [[nodiscard]] std::span<const std::string_view> arena_names() const override;

 private:
  AdamW(nn::Model& model, const AdamWOptions& options) : Optimizer(model), options_(options) {}
  int update(const Update& update) const override;
  [[nodiscard]] bool writes_half_params() const override { return true; }
  AdamWOptions options_;
};

}  // namespace muster
