// SPDX-License-Identifier: Apache-2.0
// Graph: the operations as a program writes them down. Model: the layout of its arenas, their first values
// and their life on a device.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <set>

#include <muster/check.h>
#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/core/sha256.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/batch_norm/batch_norm.h"
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/ops/linear/linear.h"
#include "worker_runtime/ops/max_pool/max_pool.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

Init uniform_within(double bound) {
  return [bound](Generator& generator, std::span<float> out) {
    generator.uniform(out, static_cast<float>(-bound), static_cast<float>(bound));
  };
}

/// What does the work of both, the second of which is the only one to read the first's output; or nullptr.
std::unique_ptr<Operation> fused(const Operation& first, const Operation& second) {
  if (second.type() == "ReLU") return linear_with_relu(first);
  if (first.type() == "ReLU") return max_pool_with_relu(second);
  return nullptr;
}

}  // namespace

const Shape& Value::shape() const {
  static const Shape kNone;
  return graph_->error_ ? kNone : graph_->shapes_[static_cast<std::size_t>(index_)];
}

Value Graph::add(std::string name, std::unique_ptr<Operation> operation,
                 std::initializer_list<Value> inputs) {
  const int output = static_cast<int>(nodes_.size()) + 1;
  if (error_) return {*this, 0};
  Node node;
  std::vector<Shape> shapes;
  for (const Value& input : inputs) {
    MUSTER_CHECK(input.graph_ == this, "an operation on values of two graphs");
    node.inputs.push_back(input.index_);
    shapes.push_back(input.shape());
  }
  auto shape = operation->configure(shapes);
  if (shape) shapes.push_back(*shape);
  for (const Shape& value : shapes)
    if (shape && (value.size() > 3 || std::ranges::any_of(value, [](int extent) { return extent < 1; }) ||
                  std::accumulate(value.begin(), value.end(), 1.0, std::multiplies()) > INT32_MAX))
      shape = invalid(
          "a value of {}; beside the batch it has at most three dimensions, each at least 1, and less than "
          "2^31 elements",
          to_text(value));
  if (!shape) {
    error_ = Error{shape.error().code, operation_text(nodes_.size(), name) + ": " + shape.error().message};
    return {*this, 0};
  }
  node.name = std::move(name);
  node.operation = std::move(operation);
  nodes_.push_back(std::move(node));
  shapes_.push_back(*std::move(shape));
  return {*this, output};
}

Value apply(std::string name, std::unique_ptr<Operation> operation, std::initializer_list<Value> inputs) {
  MUSTER_CHECK(inputs.size() != 0, "an operation without inputs");
  return inputs.begin()->graph_->add(std::move(name), std::move(operation), inputs);
}

void Frame::report(const Error& error) const {
  device->report(error);
}

void Frame::report_cuda(int error, std::string_view what) const {
  device->report_cuda(error, what);
}

/// Replaces pairs of operations by one where a measurement asked for it: linear + relu (one core,
/// GarmentClassifier, batch 4: the mask costs a pass over 120 and 84 values each way), and relu + max_pool2d
/// without overlap (one pass instead of two over the largest activations). `output` is the value that the
/// model returns: the operation that makes it keeps its own output.
void fuse(Graph& graph, int output) {
  std::vector<int> readers(graph.shapes_.size(), 0);
  for (const Graph::Node& node : graph.nodes_)
    for (const int input : node.inputs) ++readers[static_cast<std::size_t>(input)];
  ++readers[static_cast<std::size_t>(output)];
  for (Graph::Node& second : graph.nodes_) {
    if (second.operation == nullptr || second.inputs.size() != 1) continue;
    const int between = second.inputs[0];
    if (between == 0 || readers[static_cast<std::size_t>(between)] != 1) continue;
    Graph::Node& first = graph.nodes_[static_cast<std::size_t>(between - 1)];
    if (first.operation == nullptr) continue;
    // Parameters keep the order they were written down in, whose values a seed gives.
    const auto has_parameters = [](const Graph::Node& node) {
      return node.operation != nullptr && !node.operation->parameters().empty();
    };
    if (has_parameters(first) && std::any_of(&first + 1, &second, has_parameters)) continue;
    auto one = fused(*first.operation, *second.operation);
    if (one == nullptr) continue;
    std::vector<Shape> shapes;
    shapes.reserve(first.inputs.size());
    for (const int input : first.inputs) shapes.push_back(graph.shapes_[static_cast<std::size_t>(input)]);
    if (!one->configure(shapes)) continue;
    if (second.name.empty()) second.name = first.name;
    second.inputs = std::move(first.inputs);
    second.operation = std::move(one);
    first.operation.reset();
    first.inputs.clear();
  }
}

// The bounds are computed in double in the order of torch.nn.init: the same bits.
Init kaiming_uniform(std::int64_t fan_in) {
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1.0 + slope * slope));
  return uniform_within(std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(fan_in))));
}

Init uniform_by_fan_in(std::int64_t fan_in) {
  return uniform_within(1.0 / std::sqrt(static_cast<double>(fan_in)));
}

Init kaiming_normal(std::int64_t fan_out) {
  return [fan_out](Generator& generator, std::span<float> out) {
    const double deviation = std::sqrt(2.0 / static_cast<double>(fan_out));
    for (float& value : out) {  // Box and Muller; 1 - u is never 0
      const double u = generator.next32() * 0x1p-32, v = generator.next32() * 0x1p-32;
      value = static_cast<float>(deviation * std::sqrt(-2.0 * std::log1p(-u)) *
                                 std::cos(2.0 * std::numbers::pi * v));
    }
  };
}

Init constant(float value) {
  return [value](Generator&, std::span<float> out) { std::fill(out.begin(), out.end(), value); };
}

Result<Model> Model::create(Graph& graph, Value output, const ModelOptions& options) {
  if (graph.error_) return fail(*graph.error_);
  MUSTER_CHECK(output.graph_ == &graph, "a model of another graph's value");
  if (options.autocast != DType::kFloat32 && options.autocast != DType::kBFloat16 &&
      options.autocast != DType::kFloat16)
    return invalid("autocast to {}; it takes F32, BF16 or F16", to_string(options.autocast));
  if (options.fuse) fuse(graph, output.index_);
  Model model;
  model.output_ = output.index_;
  model.autocast_ = options.autocast;
  model.input_gradient_ = options.input_gradient;
  std::set<std::string> names;
  const auto place = [&](const Graph::Node& node, std::string_view suffix, std::vector<std::int64_t> shape,
                         Init init, std::vector<Parameter>& list, std::size_t& elements) -> Result<void> {
    Parameter made{node.name + "." + std::string(suffix),         std::move(shape), std::move(init),
                   static_cast<int>(&node - graph.nodes_.data()), elements,         0};
    if (!names.insert(made.name).second)
      return invalid("{}: there is a parameter '{}' already; name each operation differently",
                     operation_text(static_cast<std::size_t>(made.operation), node.name), made.name);
    made.count = static_cast<std::size_t>(elements_of(made.shape));
    elements += (made.count + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    list.push_back(std::move(made));
    return {};
  };
  for (const Graph::Node& node : graph.nodes_) {
    if (node.operation == nullptr) continue;
    if (options.sync_batch_norm != nullptr) synchronize_batch_norm(*node.operation, *options.sync_batch_norm);
    for (ParameterSpec& spec : node.operation->parameters())
      MUSTER_OK(place(node, spec.suffix, std::move(spec.shape), std::move(spec.init), model.parameters_,
                      model.arena_elements_));
    for (BufferSpec& spec : node.operation->buffers())
      MUSTER_OK(place(node, spec.suffix, std::move(spec.shape), constant(spec.initial), model.buffers_,
                      model.buffer_elements_));
  }
  // What the output is made of: without a parameter there no loss of it has a gradient.
  std::vector<bool> used(graph.shapes_.size(), false);
  used[static_cast<std::size_t>(output.index_)] = true;
  bool trains = options.input_gradient;
  for (std::size_t i = graph.nodes_.size(); i-- > 0;) {
    if (!used[i + 1]) continue;
    const Graph::Node& node = graph.nodes_[i];
    for (const int input : node.inputs) used[static_cast<std::size_t>(input)] = true;
    trains = trains || (node.operation != nullptr && !node.operation->parameters().empty());
  }
  if (!trains)
    return invalid(
        "the model's output {} depends on no parameter, so no loss of it can train one; make the model of "
        "the value that the last layer returns",
        to_text(graph.shapes_[static_cast<std::size_t>(output.index_)]));
  model.nodes_ = std::move(graph.nodes_);
  model.shapes_ = std::move(graph.shapes_);
  model.host_params_.assign(model.arena_elements_, 0.0F);
  model.host_buffers_.assign(model.buffer_elements_, 0.0F);
  Generator none(0);
  for (const Parameter& buffer : model.buffers_)
    buffer.init(none, std::span(model.host_buffers_).subspan(buffer.offset, buffer.count));
  return model;
}

std::int64_t Model::num_parameters() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += static_cast<std::int64_t>(parameter.count);
  return total;
}

std::vector<OperationInfo> Model::operations() const {
  std::vector<OperationInfo> made;
  made.reserve(nodes_.size());
  for (const Graph::Node& node : nodes_) {
    if (node.operation == nullptr) continue;
    OperationInfo& layer = made.emplace_back();
    layer.name = node.name;
    layer.operation = node.operation.get();
    for (const int input : node.inputs) layer.inputs.push_back(shapes_[static_cast<std::size_t>(input)]);
    layer.output = shapes_[static_cast<std::size_t>(&node - nodes_.data()) + 1];
  }
  return made;
}

void Model::initialize(Generator& generator) {
  std::vector<float> arena(arena_elements_, 0.0F);
  for (const Parameter& parameter : parameters_)
    parameter.init(generator, std::span(arena).subspan(parameter.offset, parameter.count));
  write_params(arena);
}

Result<void> Model::allocate(const Compute& compute, float* gradient_arena) {
  MUSTER_CHECK(params_ == nullptr, "a model is allocated once");
  MUSTER_TRY(float* const params, compute->allocate_of<float>(arena_elements_));
  MUSTER_TRY(buffer_arena_, compute->allocate_of<float>(buffer_elements_));
  if (gradient_arena == nullptr) {
    MUSTER_TRY(gradient_arena, compute->allocate_of<float>(arena_elements_));
  }
  compute_ = compute;
  params_ = params;
  grads_ = gradient_arena;
  if (autocast_ != DType::kFloat32) {
    MUSTER_TRY(half_params_, compute->allocate_of<std::uint16_t>(arena_elements_));
  }
  MUSTER_TRY(random_, compute->allocate_of<RandomState>());
  write_random_state(host_random_);
  compute_->copy_to_device(params_, host_params_.data(), arena_bytes());
  round_params();
  compute_->copy_to_device(buffer_arena_, host_buffers_.data(), buffer_elements_ * sizeof(float));
  host_params_ = {};
  host_buffers_ = {};
  return {};
}

void Model::round_params() const {
  if (half_params_ == nullptr) return;
  cast(*compute_, {.from = params_,
                   .to = half_params_,
                   .to_dtype = autocast_,
                   .count = static_cast<std::int64_t>(arena_elements_)});
}

std::vector<float> Model::read(const float* arena, std::size_t elements,
                               const std::vector<float>& host) const {
  if (params_ == nullptr) return host;
  std::vector<float> values(elements);
  compute_->copy_to_host(values.data(), arena, elements * sizeof(float));
  return values;
}

std::vector<float> Model::read_params() const {
  return read(params_, arena_elements_, host_params_);
}
std::vector<float> Model::read_grads() const {
  return read(grads_, arena_elements_, host_params_);
}
std::vector<float> Model::read_buffers() const {
  return read(buffer_arena_, buffer_elements_, host_buffers_);
}

RandomState Model::read_random_state() const {
  RandomState state = host_random_;
  if (random_ != nullptr) compute_->copy_to_host(&state, random_, sizeof state);
  return state;
}

void Model::manual_seed(std::uint64_t seed, std::uint64_t step) {
  RandomState state = read_random_state();
  state.seed = seed;
  state.step = step;
  write_random_state(state);
}

void Model::set_shards(int first, int count) {
  RandomState state = read_random_state();
  state.first_shard = static_cast<std::uint32_t>(first);
  state.shards = static_cast<std::uint32_t>(count);
  state.shard = state.first_shard + state.shards;  // none yet
  write_random_state(state);
}

void Model::write_random_state(const RandomState& state) {
  host_random_ = state;
  if (random_ != nullptr) compute_->copy_to_device(random_, &state, sizeof state);
}

void Model::write(std::span<const float> arena, float* device, std::vector<float>& host,
                  std::size_t elements) {
  MUSTER_CHECK(arena.size() == elements,
               "an arena of " + std::to_string(arena.size()) + " elements, not " + std::to_string(elements));
  if (params_ == nullptr)
    host.assign(arena.begin(), arena.end());
  else
    compute_->copy_to_device(device, arena.data(), arena.size_bytes());
}

void Model::write_params(std::span<const float> arena) {
  write(arena, params_, host_params_, arena_elements_);
  round_params();
}
void Model::write_buffers(std::span<const float> arena) {
  write(arena, buffer_arena_, host_buffers_, buffer_elements_);
}

std::string parameters_sha256(const Model& model) {
  const std::vector<float> arena = model.read_params();
  std::vector<std::string_view> pieces;
  for (const Parameter& parameter : model.parameters())
    pieces.emplace_back(reinterpret_cast<const char*>(arena.data() + parameter.offset),
                        parameter.count * sizeof(float));
  return sha256(pieces);
}

}  // namespace muster::nn
