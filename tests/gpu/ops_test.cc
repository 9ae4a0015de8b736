// SPDX-License-Identifier: Apache-2.0
// The operations' CUDA forms: gradients against central differences, and a step of a residual network against
// the CPU's. Its checkpoint.
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>

#include <muster/checkpoint.h>
#include <muster/gradcheck.h>
#include <muster/optim.h>

#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/plan_cache.h"
#include "worker_runtime/ops/cast/half.h"

using namespace muster;
using nn::Value;
using testing::require_gpu;

namespace {

Compute gpu() {
  require_gpu();
  auto compute = make_compute(DeviceType::kCuda, 0, {.conv_tf32 = false});  // as exact as the CPU
  REQUIRE_OK(compute);
  return *compute;
}

struct Step {
  std::vector<float> output, grads, buffers, inference;
};

/// The beginning of ResNet-18: two blocks, the second with a downsampled shortcut.
Result<nn::Model> residual(DType autocast) {
  nn::Graph graph({3, 32, 32});
  const auto conv = [](const std::string& name, Value x, int channels, int kernel, int stride) {
    x = nn::conv2d(
        name, x,
        {.out_channels = channels, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false});
    return nn::batch_norm2d(name + ".bn", x);
  };
  Value x = nn::relu(conv("conv1", graph.input(), 64, 7, 2));
  x = nn::max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});
  x = nn::relu(nn::add(conv("a2", nn::relu(conv("a1", x, 64, 3, 1)), 64, 3, 1), x));
  x = nn::relu(nn::add(conv("b2", nn::relu(conv("b1", x, 128, 3, 2)), 128, 3, 1), conv("b", x, 128, 1, 2)));
  x = nn::linear("fc", nn::flatten(nn::adaptive_avg_pool2d(x)), 10);
  return nn::Model::create(graph, x, {.autocast = autocast});
}

/// A training step from fixed values, then the output in inference.
Step step(const Compute& compute, DType autocast = DType::kFloat32) {
  auto model = residual(autocast);
  REQUIRE_OK(model);
  Generator generator(5);
  model->initialize(generator);
  REQUIRE_OK(model->allocate(compute));
  std::vector<float> x(8 * 3 * 32 * 32), dy(8 * 10);
  generator.uniform(x, -1, 1);
  generator.uniform(dy, -1, 1);
  Step result;
  const auto run = [&](nn::Mode mode, std::vector<float>& output) {
    auto planned = model->plan(8, mode);
    REQUIRE_OK(planned);
    const nn::Plan& plan = **planned;
    compute->copy_to_device(plan.input(), x.data(), x.size() * sizeof(float));
    plan.forward();
    output.resize(dy.size());
    compute->copy_to_host(output.data(), plan.output(), output.size() * sizeof(float));
    if (mode == nn::Mode::kInference) return;
    compute->copy_to_device(plan.output_gradient(), dy.data(), dy.size() * sizeof(float));
    plan.backward();
  };
  run(nn::Mode::kTraining, result.output);
  result.grads = model->read_grads();
  result.buffers = model->read_buffers();
  run(nn::Mode::kInference, result.inference);
  REQUIRE_OK(compute->synchronize());
  return result;
}

/// The norm of the difference, relative to the norm.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double squares = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(squares / norm);
}

/// The identity, which hands on what it is given in the type of autocast and in a layout.
class As final : public nn::Operation {
 public:
  explicit As(Layout layout) : layout_(layout) {}
  std::string_view type() const override { return "As"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  nn::Autocast autocast() const override { return nn::Autocast::kLower; }
  TensorFormat format(Device& /*device*/, const TensorFormat& offered) const override {
    return {offered.dtype, layout_};
  }
  void forward(const nn::Frame& f) const override { copy(f, f.x[0], f.y); }
  void backward(const nn::Frame& f) const override {
    if (f.dx[0]) copy(f, f.dy, f.dx[0]);
  }

 private:
  static void copy(const nn::Frame& f, const Tensor& from, const Tensor& to) {
    REQUIRE(TensorFormat{from.dtype, from.layout} == TensorFormat{to.dtype, to.layout});
    f.device->copy_on_device(to.data, from.data, to.size_bytes());
  }
  Layout layout_;
};

/// The identity that takes every format and writes down which it got.
class Probe final : public nn::Operation {
 public:
  explicit Probe(TensorFormat& seen) : seen_(&seen) {}
  std::string_view type() const override { return "Probe"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  TensorFormat format(Device& /*device*/, const TensorFormat& offered) const override { return offered; }
  void forward(const nn::Frame& f) const override {
    *seen_ = {f.x[0].dtype, f.x[0].layout};
    REQUIRE(TensorFormat{f.y.dtype, f.y.layout} == *seen_);
    f.device->copy_on_device(f.y.data, f.x[0].data, f.y.size_bytes());
  }
  void backward(const nn::Frame& f) const override {
    for (const Tensor& tensor : {f.x[0], f.y, f.dy, f.dx[0]})
      REQUIRE(TensorFormat{tensor.dtype, tensor.layout} == *seen_);
    f.device->copy_on_device(f.dx[0].data, f.dy.data, f.dy.size_bytes());
  }

 private:
  TensorFormat* seen_;
};

/// An operation as a program would write it: float32 NCHW, y = 2 x.
class Twice final : public nn::Operation {
 public:
  std::string_view type() const override { return "Twice"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  void forward(const nn::Frame& f) const override { twice(f, f.x[0], f.y); }
  void backward(const nn::Frame& f) const override { twice(f, f.dy, f.dx[0]); }

 private:
  static void twice(const nn::Frame& f, const Tensor& from, const Tensor& to) {
    for (const Tensor& tensor : {from, to})
      REQUIRE(TensorFormat{tensor.dtype, tensor.layout} == TensorFormat{});
    std::vector<float> values(static_cast<std::size_t>(from.count()));
    f.device->copy_to_host(values.data(), from.data, from.size_bytes());
    for (float& value : values) value *= 2;
    f.device->copy_to_device(to.data, values.data(), to.size_bytes());
  }
};

using Build = std::function<Value(Value)>;

/// What one training step and one in inference make of a graph: parameters, and by value, gradients.
struct Outcome {
  std::vector<float> output, dx, grads, buffers, inference;
};

/// Inputs and gradients are multiples of 1/64, which all types have.
Outcome outcome(const Compute& compute, const nn::Shape& input, int batch, const Build& build,
                DType autocast = DType::kFloat32, Layout layout = Layout::kNCHW) {
  nn::Graph graph(input);
  const Value x = nn::apply("", std::make_unique<As>(layout), {graph.input()});
  auto model = nn::Model::create(graph, build(x), {.autocast = autocast, .input_gradient = true});
  REQUIRE_OK(model);
  Generator generator(5);
  model->initialize(generator);
  REQUIRE_OK(model->allocate(compute));
  const auto drawn = [&](const nn::Shape& shape) {
    std::size_t count = static_cast<std::size_t>(batch);
    for (const int dim : shape) count *= static_cast<std::size_t>(dim);
    std::vector<float> values(count);
    generator.uniform(values, -1, 1);
    for (float& value : values) value = std::round(value * 64) / 64;
    return values;
  };
  const std::vector<float> images = drawn(input), gradient = drawn(model->output_shape());
  Outcome made;
  const auto run = [&](nn::Mode mode, std::vector<float>& output) {
    const auto planned = model->plan(batch, mode);
    REQUIRE_OK(planned);
    const nn::Plan& plan = **planned;
    compute->copy_to_device(plan.input(), images.data(), images.size() * sizeof(float));
    plan.forward();
    output.resize(gradient.size());
    compute->copy_to_host(output.data(), plan.output(), output.size() * sizeof(float));
    if (mode == nn::Mode::kInference) return;
    compute->copy_to_device(plan.output_gradient(), gradient.data(), gradient.size() * sizeof(float));
    plan.backward();
    made.dx.resize(images.size());
    compute->copy_to_host(made.dx.data(), plan.input_gradient(), images.size() * sizeof(float));
  };
  run(nn::Mode::kTraining, made.output);
  made.grads = model->read_grads();
  made.buffers = model->read_buffers();
  run(nn::Mode::kInference, made.inference);
  REQUIRE_OK(compute->synchronize());
  return made;
}

void require_close(const Outcome& expected, const Outcome& actual, double tolerance) {
  for (const auto list :
       {&Outcome::output, &Outcome::dx, &Outcome::grads, &Outcome::buffers, &Outcome::inference}) {
    const double distance = (expected.*list).empty() ? 0 : difference(expected.*list, actual.*list);
    REQUIRE(distance <= tolerance);
  }
}

/// float32: the order of sums; else a rounding of each value that is handed on.
double tolerance_of(DType dtype) {
  return dtype == DType::kBFloat16 ? 1e-2 : dtype == DType::kFloat16 ? 1.5e-3 : 1e-5;
}

/// The gradient by the input, and where the counter then stands, after two passes through Dropout.
std::pair<std::vector<float>, nn::RandomState> dropped(const Compute& compute) {
  constexpr int kCount = 1001;
  nn::Graph graph({kCount});
  auto model = nn::Model::create(graph, nn::dropout(graph.input(), 0.3F), {.input_gradient = true});
  REQUIRE_OK(model);
  REQUIRE_OK(model->allocate(compute));
  model->manual_seed(7);
  auto plan = model->plan(3, nn::Mode::kTraining);
  REQUIRE_OK(plan);
  std::vector<float> ones(std::size_t{3} * kCount, 1.0F), dx(ones.size());
  for (int pass = 0; pass < 2; ++pass) {
    compute->copy_to_device((*plan)->input(), ones.data(), ones.size() * sizeof(float));
    (*plan)->forward();
    compute->copy_to_device((*plan)->output_gradient(), ones.data(), ones.size() * sizeof(float));
    (*plan)->backward();
  }
  compute->copy_to_host(dx.data(), (*plan)->input_gradient(), dx.size() * sizeof(float));
  REQUIRE_OK(compute->synchronize());
  return {dx, model->read_random_state()};
}

}  // namespace

TEST_CASE("the gradients of every operation on the GPU agree with central differences") {
  const Compute compute = gpu();
  const auto check = [&](const nn::Shape& input, const std::function<Value(Value)>& build,
                         const nn::GradcheckOptions& options = {}) {
    REQUIRE_OK(nn::gradcheck(compute, input, build, options));
  };
  check({7}, [](Value x) { return nn::linear("fc", x, 5); });
  check({2, 7, 6}, [](Value x) {
    return nn::conv2d("c", x, {.out_channels = 3, .kernel = 3, .stride = 2, .padding = 1, .bias = false});
  });
  check({3, 5, 4}, [](Value x) { return nn::batch_norm2d("bn", x); }, {.batch = 3});
  check({2, 7, 6}, [](Value x) { return nn::max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); },
        {.step = 1e-4});
  check({2, 6, 7}, [](Value x) { return nn::max_pool2d(nn::relu(x)); }, {.fuse = true});
  check({2, 7, 6}, [](Value x) { return nn::avg_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); });
  check({3, 5, 4}, [](Value x) { return nn::adaptive_avg_pool2d(x); });
  check({2, 5, 7}, [](Value x) { return nn::adaptive_avg_pool2d(x, 3, 2); });
  check({4, 5, 6}, [](Value x) { return nn::conv2d("c", x, {.out_channels = 6, .groups = 2}); });
  check({6}, [](Value x) { return nn::add(nn::relu(x), nn::add(x, x)); });
}

TEST_CASE("every operation on the GPU computes bfloat16, float16 and NHWC as the CPU does float32 NCHW") {
  struct Case {
    std::string name;
    nn::Shape input;
    int batch;
    Build build;
  };
  const auto conv = [](const nn::Conv2dOptions& o) { return [o](Value x) { return nn::conv2d("c", x, o); }; };
  const std::vector<Case> cases{
      {"conv2d", {2, 7, 6}, 3, conv({.out_channels = 3, .kernel = 3, .stride = 2, .padding = 1})},
      {"conv2d 5x5", {3, 9, 8}, 2, conv({.out_channels = 6, .kernel = 5})},
      {"conv2d in groups", {4, 5, 6}, 2, conv({.out_channels = 6, .groups = 2, .bias = false})},
      {"conv2d by tiles", {35, 16, 16}, 2, conv({.out_channels = 70, .stride = 2, .padding = 1})},
      {"conv2d by tiles in groups", {72, 16, 16}, 1, conv({.out_channels = 4, .kernel = 2, .groups = 2})},
      {"conv2d by cuDNN", {34, 7, 6}, 2, conv({.out_channels = 40, .stride = 2, .padding = 1})},
      {"conv2d 1x1 by cuDNN", {34, 4, 6}, 2, conv({.out_channels = 40, .kernel = 1, .bias = false})},
      {"batch_norm2d", {5, 6, 3}, 9, [](Value x) { return nn::batch_norm2d("bn", x); }},
      {"batch_norm2d of many channels", {40, 3, 4}, 17, [](Value x) { return nn::batch_norm2d("bn", x); }},
      // Eight lie side by side in a thread: as many threads as divide no block, and several blocks.
      {"batch_norm2d of 48 channels", {48, 4, 6}, 31, [](Value x) { return nn::batch_norm2d("bn", x); }},
      {"batch_norm2d of 264 channels", {264, 3, 3}, 13, [](Value x) { return nn::batch_norm2d("bn", x); }},
      {"relu", {3, 5, 7}, 3, [](Value x) { return nn::relu(x); }},
      {"add", {3, 5, 7}, 3, [](Value x) { return nn::add(nn::relu(x), x); }},
      {"max_pool2d",
       {5, 7, 6},
       3,
       [](Value x) { return nn::max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); }},
      {"max_pool2d of 16 channels",
       {16, 7, 6},
       3,
       [](Value x) { return nn::max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); }},
      {"relu and max_pool2d", {3, 9, 8}, 2, [](Value x) { return nn::max_pool2d(nn::relu(x)); }},
      {"avg_pool2d",
       {5, 7, 6},
       3,
       [](Value x) { return nn::avg_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); }},
      {"avg_pool2d of 16 channels",
       {16, 7, 6},
       3,
       [](Value x) { return nn::avg_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); }},
      {"adaptive_avg_pool2d", {5, 4, 6}, 3, [](Value x) { return nn::adaptive_avg_pool2d(x); }},
      {"adaptive_avg_pool2d to 3x2", {5, 4, 6}, 3, [](Value x) { return nn::adaptive_avg_pool2d(x, 3, 2); }},
      {"adaptive_avg_pool2d from one pixel",
       {5, 1, 1},
       3,
       [](Value x) { return nn::relu(nn::adaptive_avg_pool2d(x, 3, 2)); }},
      {"flatten and linear",
       {3, 5, 4},
       3,
       [](Value x) { return nn::linear("fc", nn::flatten(nn::relu(x)), 9); }},
      {"linear of many samples",
       {3, 5, 4},
       70,
       [](Value x) { return nn::linear("b", nn::relu(nn::linear("a", nn::flatten(x), 33)), 7); }},
      {"dropout", {3, 5, 4}, 3, [](Value x) { return nn::dropout(x); }}};
  const Compute compute = gpu();
  auto cpu = make_compute(DeviceType::kCpu);
  REQUIRE_OK(cpu);
  for (const auto& [name, input, batch, build] : cases) {
    const Outcome expected = outcome(*cpu, input, batch, build);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
      for (const Layout layout : {Layout::kNCHW, Layout::kNHWC}) {
        INFO(name << " in " << to_string(dtype) << (layout == Layout::kNHWC ? " NHWC" : " NCHW"));
        require_close(expected, outcome(compute, input, batch, build, dtype, layout), tolerance_of(dtype));
      }
  }
}

TEST_CASE("a model's plan mixes types and layouts and converts only between those that differ") {
  const Compute compute = gpu();
  auto cpu = make_compute(DeviceType::kCpu);
  REQUIRE_OK(cpu);
  std::array<TensorFormat, 5> seen;
  const auto build = [&](bool probes) -> Build {
    return [&seen, probes](Value x) {
      const auto probe = [&](std::size_t i, Value value) {
        return probes ? nn::apply("", std::make_unique<Probe>(seen.at(i)), {value}) : value;
      };
      x = probe(0, nn::relu(nn::batch_norm2d("bn1", nn::conv2d("c1", x, {.out_channels = 6, .padding = 1}))));
      const Value twice = nn::apply("", std::make_unique<Twice>(), {x});
      x = probe(1, nn::add(x, twice));  // the layout of its first input
      x = probe(2, nn::add(twice, nn::conv2d("c2", x, {.out_channels = 6, .padding = 1})));
      x = probe(3, nn::flatten(nn::max_pool2d(x)));
      return probe(4, nn::linear("fc", x, 4));
    };
  };
  constexpr Layout kNCHW = Layout::kNCHW, kNHWC = Layout::kNHWC;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    INFO(to_string(dtype));
    // The CPU's forms are float32 NCHW alone: the same roundings with a conversion at each operation.
    const Outcome expected = outcome(*cpu, {3, 6, 6}, 4, build(false), dtype, kNHWC);
    require_close(expected, outcome(compute, {3, 6, 6}, 4, build(true), dtype, kNHWC),
                  2 * tolerance_of(dtype));
    REQUIRE(seen == std::array<TensorFormat, 5>{
                        {{dtype, kNHWC}, {dtype, kNHWC}, {dtype, kNCHW}, {dtype, kNCHW}, {dtype, kNCHW}}});
  }
}

TEST_CASE("convolutions by cuDNN are NHWC under autocast, and their fastest plans are kept") {
  require_gpu();
  const test::TemporaryDirectory cache;
  REQUIRE(::setenv("XDG_CACHE_HOME", cache.path().c_str(), 1) == 0);
  const auto compute = make_compute(DeviceType::kCuda, 0, {.benchmark = true});
  REQUIRE_OK(compute);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    TensorFormat seen;
    nn::Graph graph({34, 6, 6});
    const Value x = nn::conv2d("c", graph.input(), {.out_channels = 40});
    auto model =
        nn::Model::create(graph, nn::apply("", std::make_unique<Probe>(seen), {x}), {.autocast = dtype});
    REQUIRE_OK(model);
    REQUIRE_OK(model->allocate(*compute));
    const auto plan = model->plan(2, nn::Mode::kTraining);
    REQUIRE_OK(plan);
    (*plan)->forward();
    (*plan)->backward();
    REQUIRE_OK((*compute)->synchronize());
    const bool has_dnn = (*plan)->backends().find("cuDNN") != std::string::npos;
#ifdef EMULATED_NCCL
    REQUIRE(has_dnn);
#endif
    if (!has_dnn) return;
    REQUIRE(seen == TensorFormat{dtype, dtype == DType::kFloat32 ? Layout::kNCHW : Layout::kNHWC});
    std::ifstream file(PlanCache::default_path());
    const std::string kept(std::istreambuf_iterator<char>(file), {});
    INFO(kept);
    const std::string name(to_string(dtype));
    for (const std::string pass : {"forward", "backward data", "backward filter"})
      REQUIRE(kept.find("conv2d " + pass + "|" + name + (dtype == DType::kFloat32 ? "|TF32" : "|NHWC")) !=
              std::string::npos);
  }
}

TEST_CASE("the parameters' half copy follows them through writes and through every optimizer's step") {
  /// As a program would write it: it knows of no copy. The new parameters are the gradients.
  class Own final : public Optimizer {
   public:
    Own(nn::Model& model, const Compute& compute) : Optimizer(model), compute_(compute) {
      REQUIRE_OK(start("own", {}));
    }
    std::span<const std::string_view> arena_names() const override { return {}; }

   private:
    int update(const Update& u) const override {
      REQUIRE(u.half_params == nullptr);
      compute_->copy_on_device(u.params, u.grads, u.count * sizeof(float));
      return 0;
    }
    Compute compute_;
  };
  for (const Compute& compute : {*make_compute(DeviceType::kCpu), gpu()})
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      nn::Model model = nn::mlp({.autocast = dtype});
      REQUIRE_OK(model.allocate(compute));
      const auto check = [&] {
        const std::vector<float> params = model.read_params();
        std::vector<std::uint16_t> copy(params.size()), expected;
        compute->copy_to_host(copy.data(), model.half_params(), copy.size() * sizeof(std::uint16_t));
        for (const float value : params)
          expected.push_back(dtype == DType::kBFloat16 ? nn::to_bf16(value) : nn::to_f16(value));
        REQUIRE(copy == expected);
      };
      Generator generator(1);
      model.initialize(generator);
      check();
      std::vector<float> gradients(model.arena_elements());
      generator.uniform(gradients, -1, 1);
      compute->copy_to_device(model.grads(), gradients.data(), model.arena_bytes());
      auto sgd = Sgd::create(model, {.lr = 0.1F});
      REQUIRE_OK(sgd);
      auto adamw = AdamW::create(model, {.lr = 0.1F});
      REQUIRE_OK(adamw);
      Own own(model, compute);
      for (Optimizer* const optimizer : std::initializer_list<Optimizer*>{sgd->get(), adamw->get(), &own}) {
        const std::vector<float> before = model.read_params();
        optimizer->step();
        REQUIRE(model.read_params() != before);
        check();
      }
    }
}

TEST_CASE("Dropout on the GPU draws the CPU's numbers") {
  const Compute compute = gpu();
  auto cpu = make_compute(DeviceType::kCpu);
  REQUIRE_OK(cpu);
  REQUIRE(dropped(compute) == dropped(*cpu));
}

TEST_CASE("a training step of a residual network on the GPU is the CPU's") {
  const Compute compute = gpu();
  auto cpu = make_compute(DeviceType::kCpu);
  REQUIRE_OK(cpu);
  const Step expected = step(*cpu), actual = step(compute);
  REQUIRE(difference(expected.output, actual.output) < 1e-4);
  REQUIRE(difference(expected.inference, actual.inference) < 1e-4);
  REQUIRE(difference(expected.buffers, actual.buffers) < 1e-4);
  REQUIRE(difference(expected.grads, actual.grads) <
          1e-2);  // a rounding that opens or closes a ReLU is a jump
}

TEST_CASE(
    "a training step of a residual network under autocast on the GPU is the CPU's within the type's "
    "precision") {
  const Compute compute = gpu();
  auto cpu = make_compute(DeviceType::kCpu);
  REQUIRE_OK(cpu);
  for (const auto& [dtype, tolerance] : {std::pair(DType::kBFloat16, 5e-2), {DType::kFloat16, 1e-2}}) {
    const Step expected = step(*cpu, dtype), actual = step(compute, dtype);
    REQUIRE(difference(expected.output, actual.output) < tolerance);
    REQUIRE(difference(expected.buffers, actual.buffers) < tolerance);
  }
}

TEST_CASE("a checkpoint that is written on a GPU is restored there and on the CPU, bit for bit") {
  const test::TemporaryDirectory dir;
  const Compute compute = gpu();
  auto cpu = make_compute(DeviceType::kCpu);
  REQUIRE_OK(cpu);
  const auto group = make_single_group();
  struct Run {
    Result<nn::Model> model = residual(DType::kFloat32);
    std::unique_ptr<AdamW> adamw;
    std::unique_ptr<CheckpointManager> manager;

    Run(const Compute& on, ProcessGroup& alone, const std::string& directory, bool reads = true) {
      Generator generator(5);
      model->initialize(generator);
      REQUIRE_OK(model->allocate(on));
      adamw = *AdamW::create(*model, {});
      auto made = CheckpointManager::create(directory, *model, *adamw, alone,
                                            {.model = "residual", .read_only = reads});
      REQUIRE_OK(made);
      manager = *std::move(made);
    }
  };
  Run saved(compute, *group, dir.path(), false);
  std::vector<float> grads(saved.model->arena_elements());
  for (const nn::Parameter& parameter : saved.model->parameters())
    Generator(3).uniform(std::span(grads).subspan(parameter.offset, parameter.count), -1, 1);
  compute->copy_to_device(saved.model->grads(), grads.data(), grads.size() * sizeof(float));
  saved.adamw->step();
  const auto params = saved.model->read_params();
  const auto optimizer = saved.adamw->read_state();
  REQUIRE_OK(saved.manager->save({.step = 1}));
  saved.adamw->step();
  REQUIRE_OK(saved.manager->wait());
  for (const Compute& on : {compute, *cpu}) {
    Run restored(on, *group, dir.path());
    const auto state = restored.manager->restore();
    REQUIRE_OK(state);
    REQUIRE((*state)->step == 1);
    // In parentheses: Catch2 would print them.
    REQUIRE((restored.model->read_params() == params));
    REQUIRE((restored.model->read_buffers() == saved.model->read_buffers()));
    REQUIRE((restored.adamw->read_state() == optimizer));
  }
}
