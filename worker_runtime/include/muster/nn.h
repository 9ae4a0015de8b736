// SPDX-License-Identifier: Apache-2.0
// nn: a model is a static graph of operations over values, written down with functions that read like
// PyTorch's modules. Every buffer is a place in an arena that is computed before the first step: parameters
// in one arena, gradients in another (both contiguous, so that an optimizer is one loop and a bucket of
// gradients one range), buffers in a third, activations and their gradients in one arena per planned batch
// size, where what is never needed at the same time shares memory. Not thread-safe: one model per rank.
// Names, shapes and default initialisation are PyTorch's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/operation.h>

namespace muster {
class ProcessGroup;
}

namespace muster::nn {

class Graph;

/// An operation's output, or the graph's input. A handle: copied freely, valid as long as its graph.
class Value {
 public:
  /// Of one sample, without the batch. Empty after an error (Graph::error()).
  [[nodiscard]] const Shape& shape() const;

 private:
  friend class Graph;
  friend class Model;
  friend Value apply(std::string name, std::unique_ptr<Operation> operation,
                     std::initializer_list<Value> inputs);
  Value(Graph& graph, int index) : graph_(&graph), index_(index) {}
  Graph* graph_;
  int index_;
};

/// What Model::create() makes a model of: operations in the order they were written down. The first that does
/// not fit its inputs is remembered, those after it are ignored.
class Graph {
 public:
  /// `input`: one sample, without the batch.
  explicit Graph(Shape input) : shapes_{std::move(input)} {}
  Graph& operator=(Graph&&) = delete;  // nor copied

  [[nodiscard]] Value input() { return {*this, 0}; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  friend class Value;
  friend class Model;
  friend Value apply(std::string name, std::unique_ptr<Operation> operation,
                     std::initializer_list<Value> inputs);
  friend void fuse(Graph& graph, int output);

  struct Node {
    std::string name;  // prefix of its parameters' names; unique among operations with parameters
    std::unique_ptr<Operation> operation;  // nullptr: fused into another
    std::vector<int> inputs;               // values; the node's own output is its index + 1
  };
  Value add(std::string name, std::unique_ptr<Operation> operation, std::initializer_list<Value> inputs);

  std::vector<Node> nodes_;
  std::vector<Shape> shapes_;  // of the values; [0] is the input
  std::optional<Error> error_;
};

/// Adds an operation to the graph of its inputs.
Value apply(std::string name, std::unique_ptr<Operation> operation, std::initializer_list<Value> inputs);

struct Conv2dOptions {
  int out_channels = 1;
  int kernel = 3;
  int stride = 1;
  int padding = 0;
  int groups = 1;  ///< must divide the channels of input and output
  bool bias = true;
  Init weight_init = {};  ///< empty: PyTorch's default
};
Value conv2d(std::string name, Value x, const Conv2dOptions& options);
Value linear(std::string name, Value x, int out_features);
struct BatchNorm2dOptions {
  float eps = 1e-5F;
  float momentum = 0.1F;
  ProcessGroup* group = nullptr;  ///< SyncBatchNorm: statistics over this group's ranks, on the CPU too
};
Value batch_norm2d(std::string name, Value x, const BatchNorm2dOptions& options = {});
Value relu(Value x);
struct Pool2dOptions {
  int kernel = 2;
  int stride = 0;  ///< 0: the kernel
  int padding = 0;
};
Value max_pool2d(Value x, const Pool2dOptions& options = {});
/// The padding counts as zeros, as PyTorch's does.
Value avg_pool2d(Value x, const Pool2dOptions& options = {});
/// (channels, height, width) to those sizes; 1x1: the mean of each channel.
Value adaptive_avg_pool2d(Value x, int height = 1, int width = 1);
Value flatten(Value x);
/// In training each value is 0 with probability p, or divided by 1 - p. Model::manual_seed().
Value dropout(Value x, float p = 0.5F);
/// The sum of two values of one shape.
Value add(Value a, Value b);

/// A parameter or a buffer in the model's arenas.
struct Parameter {
  std::string name;  // as in PyTorch's state_dict: "conv1.weight"
  std::vector<std::int64_t> shape;
  Init init;
  int operation = 0;       // index of the operation it belongs to
  std::size_t offset = 0;  // elements from the start of the arena; a multiple of kArenaAlignment
  std::size_t count = 0;   // elements
};

/// Elements (64 bytes): a parameter's place starts on a cache line. The gap is 0 in every arena.
inline constexpr std::size_t kArenaAlignment = 16;

/// An operation of a model, for those who count or show what it does. Lives as long as the model.
struct OperationInfo {
  std::string name;  // as given to apply()
  const Operation* operation = nullptr;
  std::vector<Shape> inputs;  // without the batch
  Shape output;
};

class Model;

/// A model's step for one batch size: the operations with their memory. Made by Model::plan, lives as long as
/// the model. The plans of a model use the same memory: what is in one is lost when another takes a batch.
class Plan {
 public:
  [[nodiscard]] int batch() const { return batch_; }
  /// (batch, input shape), to be filled before forward().
  [[nodiscard]] float* input() const { return input_; }
  /// (batch, output shape), valid after forward().
  [[nodiscard]] float* output() const { return output_; }
  /// (batch, output shape), to be filled before backward(); nullptr in an inference plan.
  [[nodiscard]] float* output_gradient() const { return output_gradient_; }
  /// Gradient of the loss by input(), valid after backward(); nullptr unless it was asked for.
  [[nodiscard]] float* input_gradient() const { return input_gradient_; }
  /// (batch) int32, for the caller's labels.
  [[nodiscard]] std::int32_t* labels() const { return labels_; }
  /// The arena, and the most that is in use at one time, which is the least it can be.
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::size_t live_bytes() const { return live_bytes_; }

  /// How many operations each library computes: "5 muster, 3 oneDNN".
  [[nodiscard]] std::string backends() const;

  void forward() const;
  /// All operations from the last to the first that has a gradient to compute.
  void backward() const;
  /// The same in pieces, for callers that act between operations: last_operation() down to first_operation(),
  /// each once.
  void backward_operation(int operation) const;
  [[nodiscard]] int first_operation() const { return first_operation_; }
  [[nodiscard]] int last_operation() const { return static_cast<int>(steps_.size()) - 1; }

 private:
  friend class Model;
  struct Step {
    std::string name;                      // "conv1 Conv2d", in a profiler's timeline
    const Operation* operation = nullptr;  // nullptr: nothing to call forward
    std::unique_ptr<Prepared> prepared;
    bool has_backward = false;
    Frame forward, backward;
    // Between the formats that values are kept in and the operation's; and gradients that other operations
    // have written already, to which what this one computes in dx is added.
    std::vector<Cast> before_forward, after_forward, before_backward, after_backward;
  };
  std::vector<Step> steps_;  // one per operation of the graph
  Frame random_;             // of advance(), if an operation draws random numbers in training
  Device* device_ = nullptr;
  Mode mode_ = Mode::kTraining;
  int batch_ = 0;
  int first_operation_ = 0;
  float* input_ = nullptr;
  float* output_ = nullptr;
  float* output_gradient_ = nullptr;
  float* input_gradient_ = nullptr;
  std::int32_t* labels_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::size_t live_bytes_ = 0;
};

struct ModelOptions {
  /// torch.autocast's dtype, kBFloat16 or kFloat16: convolutions and linear layers compute in it, what they
  /// hand on is kept in it. Parameters, gradients and the model's output stay float32.
  DType autocast = DType::kFloat32;
  /// torch.nn.SyncBatchNorm.convert_sync_batchnorm(): each BatchNorm2d over this group's ranks.
  ProcessGroup* sync_batch_norm = nullptr;
  bool fuse = true;             ///< replace pairs of operations by one that was measured to be faster
  bool input_gradient = false;  ///< backward() computes the gradient by the input too
};

/// First create() and initialize() on the host, then allocate() on a device (DistributedDataParallel does it
/// with gradient memory of its group), then plan() per batch size.
class Model {
 public:
  /// The graph's error, if it has one; kInvalidArgument: two parameters of one name. Empties the graph.
  [[nodiscard]] static Result<Model> create(Graph& graph, Value output, const ModelOptions& options = {});

  [[nodiscard]] const Shape& input_shape() const { return shapes_.front(); }
  [[nodiscard]] const Shape& output_shape() const { return shapes_[static_cast<std::size_t>(output_)]; }
  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Running statistics and the like, in an arena of their own.
  [[nodiscard]] const std::vector<Parameter>& buffers() const { return buffers_; }
  /// In the order in which they run; of those that were fused, the one that runs.
  [[nodiscard]] std::vector<OperationInfo> operations() const;
  [[nodiscard]] std::int64_t num_parameters() const;
  /// Elements of the parameter arena, gaps included; the gradient arena and an optimizer's state have the
  /// same layout.
  [[nodiscard]] std::size_t arena_elements() const { return arena_elements_; }
  [[nodiscard]] std::size_t arena_bytes() const { return arena_elements_ * sizeof(float); }
  [[nodiscard]] std::size_t buffer_elements() const { return buffer_elements_; }

  /// Each parameter's first values, operation by operation in order of construction.
  void initialize(Generator& generator);
  /// Takes the arena's device memory, the gradients' from outside when given (arena_bytes(), zeroed), and
  /// moves parameters and buffers there. Once.
  [[nodiscard]] Result<void> allocate(const Compute& compute, float* gradient_arena = nullptr);
  /// The plan for a batch size, made on first use.
  [[nodiscard]] Result<Plan*> plan(int batch, Mode mode);

  /// What Dropout draws from now on. Each rank, or logical shard, draws its own numbers:
  /// DistributedDataParallel sets which. Seed and step are saved in checkpoints.
  void manual_seed(std::uint64_t seed, std::uint64_t step = 0);
  void set_shards(int first, int count);
  [[nodiscard]] RandomState read_random_state() const;

  [[nodiscard]] const Compute& compute() const { return compute_; }
  /// Device memory; nullptr before allocate().
  [[nodiscard]] float* params() const { return params_; }
  [[nodiscard]] float* grads() const { return grads_; }
  [[nodiscard]] float* buffer_arena() const { return buffer_arena_; }
  /// Under autocast the parameters' copy in that type, in the layout of params(): what convolutions and
  /// linear layers read. Optimizers write it with the parameters; nullptr otherwise.
  [[nodiscard]] std::uint16_t* half_params() const { return half_params_; }
  [[nodiscard]] DType autocast() const { return autocast_; }
  /// Makes that copy anew, after something else has written params(). Enqueued.
  void round_params() const;

  /// The arena on the host, arena_elements() values, gaps included. Waits for the device.
  [[nodiscard]] std::vector<float> read_params() const;
  [[nodiscard]] std::vector<float> read_grads() const;
  /// Likewise, buffer_elements() values.
  [[nodiscard]] std::vector<float> read_buffers() const;
  void write_params(std::span<const float> arena);
  void write_buffers(std::span<const float> arena);

 private:
  [[nodiscard]] std::vector<float> read(const float* arena, std::size_t elements,
                                        const std::vector<float>& host) const;
  void write_random_state(const RandomState& state);
  void write(std::span<const float> arena, float* device, std::vector<float>& host, std::size_t elements);
  class PlanBuilder;

  std::vector<Graph::Node> nodes_;
  std::vector<Shape> shapes_;
  int output_ = 0;
  DType autocast_ = DType::kFloat32;
  bool input_gradient_ = false;
  std::vector<Parameter> parameters_, buffers_;
  std::size_t arena_elements_ = 0, buffer_elements_ = 0;
  std::vector<float> host_params_, host_buffers_;  // until allocate()
  Compute compute_;
  float* params_ = nullptr;
  float* grads_ = nullptr;
  float* buffer_arena_ = nullptr;
  std::uint16_t* half_params_ = nullptr;
  RandomState host_random_;        // until allocate()
  RandomState* random_ = nullptr;  // device memory
  std::vector<std::unique_ptr<Plan>> plans_;
  std::span<std::uint8_t> activations_;  // of the largest plan; the others lie in it
};

/// Of the tutorial "Training with PyTorch": conv 5x5 1->6, pool, conv 5x5 6->16, pool, 256-120-84-10.
[[nodiscard]] Model garment_classifier(const ModelOptions& options = {});
/// LeCun's LeNet-5 with ReLU and max-pooling: conv 5x5 1->6 padded to 28x28, pool, conv 5x5 6->16, pool,
/// 400-120-84-10.
[[nodiscard]] Model lenet5(const ModelOptions& options = {});
/// 784-512-512-10 with ReLU between, for (1, 28, 28) images. Parameter names fc1, fc2, fc3.
[[nodiscard]] Model mlp(const ModelOptions& options = {});
/// torchvision's ResNet-18, -34, -50, -101 and -152 with its names, for images of `input` (3, 224, 224
/// there). kInvalidArgument: another depth, or images that are too small.
[[nodiscard]] Result<Model> resnet(int depth, const Shape& input = {3, 224, 224}, int classes = 1000,
                                   const ModelOptions& options = {});

/// SHA-256 of the parameters' values in order, gaps left out, as 64 hex digits: equal for equal bits.
[[nodiscard]] std::string parameters_sha256(const Model& model);

}  // namespace muster::nn
