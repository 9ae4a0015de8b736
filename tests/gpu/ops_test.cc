// SPDX-License-Identifier: Apache-2.0
// The operations' CUDA forms: gradients against central differences, and a step of a residual network against
// the CPU's. Its checkpoint.
#include <cmath>

#include <muster/checkpoint.h>
#include <muster/gradcheck.h>

#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/temporary_directory.h"
#include "worker_runtime/device/device.h"

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

    Run(const Compute& on, ProcessGroup& alone, const std::string& directory) {
      Generator generator(5);
      model->initialize(generator);
      REQUIRE_OK(model->allocate(on));
      adamw = *AdamW::create(*model, {});
      auto made = CheckpointManager::create(directory, *model, *adamw, alone, {.model = "residual"});
      REQUIRE_OK(made);
      manager = *std::move(made);
    }
  };
  Run saved(compute, *group, dir.path());
  std::vector<float> grads(saved.model->arena_elements());
  Generator(3).uniform(grads, -1, 1);
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
    REQUIRE(restored.model->read_params() == params);
    REQUIRE(restored.model->read_buffers() == saved.model->read_buffers());
    REQUIRE(restored.adamw->read_state() == optimizer);
  }
}
