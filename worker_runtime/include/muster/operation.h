// SPDX-License-Identifier: Apache-2.0
// Operation: one step of a model's graph: its shape rule, its parameters and buffers, what it computes
// forward and backward on each device. muster's own are in worker_runtime/ops, a folder each; a program adds
// its own by deriving from this class and nn::apply(). Operations hold no memory: all they work on is in the
// Frame, placed before the first step, so that a step allocates nothing and can be captured in a CUDA graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <muster/compute.h>
#include <muster/result.h>
#include <muster/rng.h>
#include <muster/tensor.h>

namespace muster::nn {

/// Dimensions of one sample, without the batch: {1, 28, 28} or {784}.
using Shape = std::vector<int>;
/// Of `batch` samples; of a parameter's shape too.
[[nodiscard]] inline std::int64_t elements_of(const auto& shape, std::int64_t batch = 1) {
  for (const auto extent : shape) batch *= extent;
  return batch;
}

enum class Mode : std::uint8_t {
  kTraining,   ///< keeps what backward reads; BatchNorm and Dropout do what they do in training
  kInference,  ///< forward only
};

/// Fills a parameter with its first values.
using Init = std::function<void(Generator&, std::span<float>)>;
/// torch.nn.init.kaiming_uniform_(a=sqrt(5)): weights of Conv2d and Linear. The same seed gives PyTorch's
/// bits.
[[nodiscard]] Init kaiming_uniform(std::int64_t fan_in);
/// Uniform in +-1/sqrt(fan_in): the biases of both, PyTorch's bits.
[[nodiscard]] Init uniform_by_fan_in(std::int64_t fan_in);
/// Normal with mean 0 and standard deviation sqrt(2 / fan_out): convolutions of torchvision's ResNets. Not
/// PyTorch's bits.
[[nodiscard]] Init kaiming_normal(std::int64_t fan_out);
[[nodiscard]] Init constant(float value);

struct ParameterSpec {
  std::string_view suffix;  // "weight", "bias"
  std::vector<std::int64_t> shape;
  Init init;
};

/// State that is no parameter and is saved with the model: "running_mean". Float32.
struct BufferSpec {
  std::string_view suffix;
  std::vector<std::int64_t> shape;
  float initial = 0;
};

/// Of what is drawn in training (Dropout): counter-based, so the same state gives the same numbers. In device
/// memory. Each forward pass in training goes on to the next shard, and after the last to the next step.
struct RandomState {
  std::uint64_t seed = 0, step = 0;
  std::uint32_t shard = 0, first_shard = 0, shards = 1;  // a rank is one shard, or has several logical ones
  friend bool operator==(const RandomState&, const RandomState&) = default;
};

/// How an operation computes under ModelOptions::autocast; the lists are those of torch.autocast.
enum class Autocast : std::uint8_t {
  kLower,    ///< in the lower precision, its parameters too: Conv2d, Linear
  kPromote,  ///< in the widest type of its inputs, its parameters in float32: all others
  kFloat32,
};

/// What an operation keeps for one plan, such as a library's plans; of operations that need nothing, nothing.
struct Prepared {
  virtual ~Prepared() = default;
  std::size_t workspace_bytes = 0;      // beside the operation's own, and behind it
  std::string_view backend = "muster";  // who computes it: "oneDNN", "cuDNN", "cuBLASLt"
};

/// What one operation works on in one plan, in the memory of the plan's device. All tensors are float32 NCHW,
/// or what the operation's format() said.
struct Frame {
  Mode mode = Mode::kTraining;
  std::vector<Tensor> x;  // the inputs, in order
  Tensor y;
  Tensor dy;                             // gradient of the loss by y; none in an inference plan
  std::vector<Tensor> dx;                // by each input, to be overwritten; none where nobody needs it
  std::vector<float*> params;            // one per ParameterSpec, in order
  std::vector<const void*> half_params;  // of Autocast::kLower in a half format(): their copies of that type
  std::vector<float*> grads;             // likewise, to be overwritten
  std::vector<float*> buffers;           // one per BufferSpec
  std::uint8_t* saved = nullptr;         // saved_bytes(), kept from forward to backward
  std::uint8_t* workspace = nullptr;     // workspace_bytes(), lost after each call
  RandomState* random = nullptr;         // in device memory
  std::uint32_t operation = 0;           // its index in the graph
  Prepared* prepared = nullptr;          // what prepare() returned
  Device* device = nullptr;
  void* stream = nullptr;  // cudaStream_t; nullptr: the memory is the host's, and so is the work

  /// params[k], or half_params[k] where those are there.
  [[nodiscard]] const void* param(std::size_t k) const {
    return half_params.empty() ? params[k] : half_params[k];
  }
  /// An error of a launch; the step that it belongs to returns it.
  void report(const Error& error) const;
  /// report()s cudaGetLastError()'s value, unless it is cudaSuccess.
  void report_cuda(int error, std::string_view what) const;
};

class Operation {
 public:
  virtual ~Operation() = default;

  /// As PyTorch's module is called: "Conv2d".
  [[nodiscard]] virtual std::string_view type() const = 0;
  /// Fixes the sizes for these inputs and returns the output's shape; without the batch. Called once, first.
  [[nodiscard]] virtual Result<Shape> configure(std::span<const Shape> inputs) = 0;
  [[nodiscard]] virtual std::vector<ParameterSpec> parameters() const { return {}; }
  [[nodiscard]] virtual std::vector<BufferSpec> buffers() const { return {}; }
  [[nodiscard]] virtual std::size_t saved_bytes(int /*batch*/) const { return 0; }
  [[nodiscard]] virtual std::size_t workspace_bytes(int /*batch*/) const { return 0; }
  /// Whether backward() reads the inputs, and the output: what it does not read is not kept for it.
  [[nodiscard]] virtual bool backward_reads_x() const { return true; }
  [[nodiscard]] virtual bool backward_reads_y() const { return true; }
  /// Whether it reads Frame::random, whose step then counts.
  [[nodiscard]] virtual bool draws_random_numbers() const { return false; }
  /// The output is the one input's memory under another shape; forward and backward are not called.
  [[nodiscard]] virtual bool is_view() const { return false; }
  /// Multiply-accumulates of one sample's forward pass, counted as THOP does (biases ignored).
  [[nodiscard]] virtual std::int64_t macs() const { return 0; }
  [[nodiscard]] virtual Autocast autocast() const { return Autocast::kPromote; }
  /// What it takes its tensors in, their gradients too, where the plan offers it `offered`: the type that
  /// autocast gives it, and the layout of its first input. The type is that or float32. What its neighbours
  /// hand it in another format is converted.
  [[nodiscard]] virtual TensorFormat format(Device& /*device*/, const TensorFormat& /*offered*/) const {
    return {};
  }
  /// Before the first step of a plan; `format`: format()'s.
  [[nodiscard]] virtual Result<std::unique_ptr<Prepared>> prepare(Device& /*device*/, int /*batch*/,
                                                                  const TensorFormat& /*format*/) const {
    return nullptr;
  }
  /// Only enqueues where the device is a GPU; done on return on the CPU.
  virtual void forward(const Frame& frame) const = 0;
  /// Overwrites the parameters' gradients and each dx that is there. May clobber dy.
  virtual void backward(const Frame& frame) const = 0;
};

}  // namespace muster::nn
