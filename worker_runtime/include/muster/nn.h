// SPDX-License-Identifier: Apache-2.0
// nn: networks as a static list of layers with explicit forward and backward. Every buffer is a place in an
// arena that is computed before the first step: parameters in one arena, gradients in another (both
// contiguous, so that an optimizer is one loop and a bucket of gradients one range), activations in one arena
// per planned batch size. A step allocates nothing. Layers know kernels::Kernels and no device. Not
// thread-safe: one model per rank. Names, shapes and default initialisation are PyTorch's: the same seed
// gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/compute.h>
#include <muster/result.h>
#include <muster/rng.h>

namespace muster::nn {

/// Dimensions of one sample, without the batch: {1, 28, 28} or {784}.
using Shape = std::vector<int>;

/// How PyTorch's reset_parameters() fills a tensor.
enum class Init : std::uint8_t {
  kKaimingUniform,  ///< kaiming_uniform_(a=sqrt(5)): weights of Conv2d and Linear
  kFanInUniform,    ///< uniform in +-1/sqrt(fan_in): their biases
};

/// What a layer asks for.
struct ParameterSpec {
  std::string_view suffix;  // "weight", "bias"
  std::vector<std::int64_t> shape;
  Init init;
  std::int64_t fan_in;
};

/// A parameter in the model's arenas.
struct Parameter {
  std::string name;  // as in PyTorch's state_dict: "conv1.weight"
  std::vector<std::int64_t> shape;
  Init init = Init::kKaimingUniform;
  std::int64_t fan_in = 0;
  int layer = 0;           // index of the layer it belongs to
  std::size_t offset = 0;  // elements from the start of the arena; a multiple of kArenaAlignment
  std::size_t count = 0;   // elements
};

/// Elements (64 bytes): a parameter's place starts on a cache line. The gap is 0 in every arena.
inline constexpr std::size_t kArenaAlignment = 16;

/// One layer's buffers in one plan, in device memory.
struct Frame {
  kernels::Kernels* kernels = nullptr;
  int batch = 0;
  const float* x = nullptr;          // (batch, input)
  float* y = nullptr;                // (batch, output)
  float* dy = nullptr;               // gradient of the loss by y; nullptr in an inference plan
  float* dx = nullptr;               // by x; nullptr where nobody needs it
  std::uint8_t* scratch = nullptr;   // scratch_bytes(batch), kept from forward to backward
  std::vector<const float*> params;  // one pointer per ParameterSpec, in order
  std::vector<float*> grads;
};

class Layer {
 public:
  virtual ~Layer() = default;

  /// Fixes the layer's sizes for this input and returns its output's shape. Called once, before everything
  /// else.
  [[nodiscard]] virtual Result<Shape> configure(const Shape& input) = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters() const { return {}; }
  [[nodiscard]] virtual std::size_t scratch_bytes(int /*batch*/) const { return 0; }
  /// The output is the input's memory under another shape; forward and backward do nothing.
  [[nodiscard]] virtual bool is_view() const { return false; }
  /// Multiply-accumulates of one sample's forward pass, counted as THOP does (biases ignored).
  [[nodiscard]] virtual std::int64_t macs() const { return 0; }
  [[nodiscard]] virtual Result<void> plan(kernels::Kernels& /*kernels*/, int /*batch*/) const { return {}; }
  virtual void forward(const Frame& frame) const = 0;
  /// Overwrites the parameters' gradients and, unless it is nullptr, dx. May clobber dy.
  virtual void backward(const Frame& frame) const = 0;
};

struct Conv2dOptions {
  int in_channels = 1;
  int out_channels = 1;
  int kernel = 3;
  int stride = 1;
  int padding = 0;
};
[[nodiscard]] std::unique_ptr<Layer> conv2d(const Conv2dOptions& options);
/// max_pool2d(relu(x), window), which equals relu(max_pool2d(x)): one kernel.
[[nodiscard]] std::unique_ptr<Layer> relu_max_pool2d(int window = 2);
[[nodiscard]] std::unique_ptr<Layer> flatten();
/// Linear, followed by ReLU with `relu`.
[[nodiscard]] std::unique_ptr<Layer> linear(int in_features, int out_features, bool relu = false);

struct NamedLayer {
  std::string name;  // prefix of its parameters' names; unique among layers with parameters
  std::unique_ptr<Layer> layer;
};

enum class Mode : std::uint8_t {
  kTraining,   ///< keeps every activation for backward
  kInference,  ///< forward only: two buffers in turn
};

class Model;

/// A model's step for one batch size: the layers with their buffers. Made by Model::plan, lives as long as
/// the model.
class Plan {
 public:
  [[nodiscard]] int batch() const { return batch_; }
  /// (batch, input shape), to be filled before forward().
  [[nodiscard]] float* input() const { return input_; }
  /// (batch, output shape), valid after forward().
  [[nodiscard]] float* output() const { return output_; }
  /// (batch, output shape), to be filled before backward(); nullptr in an inference plan.
  [[nodiscard]] float* output_gradient() const { return output_gradient_; }
  /// (batch) int32, for the caller's labels.
  [[nodiscard]] std::int32_t* labels() const { return labels_; }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }

  void forward() const;
  /// All layers from the last to the first that has parameters.
  void backward() const;
  /// The same in pieces, for callers that act between layers: layers last_layer() down to first_layer(), each
  /// once.
  void backward_layer(int layer) const;
  [[nodiscard]] int first_layer() const { return first_layer_; }
  [[nodiscard]] int last_layer() const { return static_cast<int>(frames_.size()) - 1; }

 private:
  friend class Model;
  std::vector<const Layer*> layers_;
  std::vector<Frame> frames_;  // one per layer
  Mode mode_ = Mode::kTraining;
  int batch_ = 0;
  int first_layer_ = 0;
  float* input_ = nullptr;
  float* output_ = nullptr;
  float* output_gradient_ = nullptr;
  std::int32_t* labels_ = nullptr;
  std::size_t size_bytes_ = 0;
};

/// A network of layers one after another. First create() and initialize() on the host, then allocate() on a
/// device (DistributedDataParallel does it with gradient memory of its group), then plan() per batch size.
class Model {
 public:
  /// kInvalidArgument names the first layer that does not fit its input.
  [[nodiscard]] static Result<Model> create(const Shape& input, std::vector<NamedLayer> layers);

  [[nodiscard]] const Shape& input_shape() const { return input_; }
  [[nodiscard]] const Shape& output_shape() const { return output_; }
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  [[nodiscard]] std::int64_t num_parameters() const;
  [[nodiscard]] std::int64_t macs_per_sample() const;
  /// Elements of the parameter arena, gaps included; the gradient arena and an optimizer's state have the
  /// same layout.
  [[nodiscard]] std::size_t arena_elements() const { return arena_elements_; }
  [[nodiscard]] std::size_t arena_bytes() const { return arena_elements_ * sizeof(float); }

  /// PyTorch's default initialisation, layer by layer in order of construction.
  void initialize(Generator& generator);
  /// Takes the arena's device memory, the gradients' from outside when given (arena_bytes(), zeroed), and
  /// moves the parameters there. Once.
  [[nodiscard]] Result<void> allocate(const Compute& compute, float* gradient_arena = nullptr);
  /// The plan for a batch size, made on first use.
  [[nodiscard]] Result<Plan*> plan(int batch, Mode mode);

  [[nodiscard]] const Compute& compute() const { return compute_; }
  /// Device memory; nullptr before allocate().
  [[nodiscard]] float* params() const { return params_; }
  [[nodiscard]] float* grads() const { return grads_; }

  /// The arena on the host, arena_elements() values, gaps included. Waits for the device.
  [[nodiscard]] std::vector<float> read_params() const { return read(params_); }
  [[nodiscard]] std::vector<float> read_grads() const { return read(grads_); }
  void write_params(std::span<const float> arena);

 private:
  [[nodiscard]] std::vector<float> read(const float* arena) const;
  [[nodiscard]] Result<std::unique_ptr<Plan>> make_plan(int batch, Mode mode) const;

  Shape input_;
  Shape output_;
  std::vector<NamedLayer> layers_;
  std::vector<Shape> shapes_;  // output of each layer
  std::vector<Parameter> parameters_;
  std::size_t arena_elements_ = 0;
  std::vector<float> host_params_;  // until allocate()
  Compute compute_;
  float* params_ = nullptr;
  float* grads_ = nullptr;
  std::vector<std::unique_ptr<Plan>> plans_;
};

/// Of the tutorial "Training with PyTorch": conv 5x5 1->6, pool, conv 5x5 6->16, pool, 256-120-84-10.
[[nodiscard]] Model garment_classifier();
/// 784-512-512-10 with ReLU between, for (1, 28, 28) images. Parameter names fc1, fc2, fc3.
[[nodiscard]] Model mlp();

/// SHA-256 of the parameters' values in order, gaps left out, as 64 hex digits: equal for equal bits.
[[nodiscard]] std::string parameters_sha256(const Model& model);

}  // namespace muster::nn
