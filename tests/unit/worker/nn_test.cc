// SPDX-License-Identifier: Apache-2.0
// The network against PyTorch: initial weights bit for bit, one training step within the kernels' tolerance.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include <muster/nn.h>

#include "tests/support/fixture.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cross_entropy/cross_entropy.h"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"

using namespace muster;

namespace {

Compute reference() {
  return *make_compute(DeviceType::kCpu);
}

std::vector<float> values_of(const std::vector<float>& arena, const nn::Parameter& parameter) {
  const auto begin = arena.begin() + static_cast<std::ptrdiff_t>(parameter.offset);
  return {begin, begin + static_cast<std::ptrdiff_t>(parameter.count)};
}

float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

void require_close(const std::vector<float>& actual, const std::vector<float>& expected, float tolerance) {
  REQUIRE(actual.size() == expected.size());
  const float scale = largest(expected);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    INFO("element " << i << ": " << actual[i] << ", expected " << expected[i]);
    REQUIRE(std::abs(actual[i] - expected[i]) <= tolerance * scale);
  }
}

}  // namespace

TEST_CASE("GarmentClassifier starts with PyTorch's weights, bit for bit") {
  const test::Fixture fixture("pytorch_weights.safetensors");
  for (const std::uint64_t seed : {0, 42}) {
    nn::Model model = nn::garment_classifier();
    Generator generator(seed);
    model.initialize(generator);
    REQUIRE(model.num_parameters() == 44426);
    const std::vector<float> arena = model.read_params();
    for (const nn::Parameter& parameter : model.parameters()) {
      const std::string key = "garment." + std::to_string(seed) + "." + parameter.name;
      INFO(key);
      const std::vector<float> mine = values_of(arena, parameter);
      REQUIRE(fixture.get<std::int64_t>(key + ".crc") == std::vector<std::int64_t>{test::crc32_of(mine)});
      if (fixture.has(key)) {
        REQUIRE(fixture.get<float>(key) == mine);
        REQUIRE(fixture.view().find(key)->shape == parameter.shape);
      }
    }
  }
}

TEST_CASE("the MLP starts with PyTorch's weights, bit for bit") {
  const test::Fixture fixture("pytorch_weights.safetensors");
  for (const std::uint64_t seed : {0, 42}) {
    nn::Model model = nn::mlp();
    Generator generator(seed);
    model.initialize(generator);
    REQUIRE(model.num_parameters() == 669706);
    const std::vector<float> arena = model.read_params();
    for (const nn::Parameter& parameter : model.parameters()) {
      const std::string key = "mlp." + std::to_string(seed) + "." + parameter.name;
      INFO(key);
      const std::vector<float> mine = values_of(arena, parameter);
      const auto first = fixture.get<float>(key + ".first");
      REQUIRE(std::equal(first.begin(), first.end(), mine.begin()));
      REQUIRE(fixture.get<std::int64_t>(key + ".crc") == std::vector<std::int64_t>{test::crc32_of(mine)});
    }
  }
}

TEST_CASE("one training step of GarmentClassifier has PyTorch's logits, loss and gradients") {
  const test::Fixture fixture("pytorch_step.safetensors");
  const Compute compute = *make_compute(DeviceType::kCpu);
  nn::Model model = nn::garment_classifier();
  Generator generator(42);
  model.initialize(generator);
  REQUIRE_OK(model.allocate(compute));
  auto planned = model.plan(4, nn::Mode::kTraining);
  REQUIRE_OK(planned);
  const nn::Plan& plan = **planned;

  const auto images = fixture.get<std::uint8_t>("images");
  const auto labels = fixture.get<std::uint8_t>("labels");
  const std::vector<std::int32_t> indices{0, 1, 2, 3};
  nn::gather_normalize(
      *compute,
      {images.data(), labels.data(), indices.data(), 4, 784, {0.5F}, {0.5F}, plan.input(), plan.labels()});
  plan.forward();
  LossTotals totals;
  (void)nn::cross_entropy({plan.output(), plan.labels(), 4, 10, plan.output_gradient()}, &totals, nullptr);
  require_close(std::vector<float>(plan.output(), plan.output() + 40), fixture.get<float>("logits"), 1e-5F);
  REQUIRE(totals.loss_sum / 4 == Approx(fixture.get<float>("loss")[0]).epsilon(1e-6));
  plan.backward();
  const std::vector<float> gradients = model.read_grads();
  for (const nn::Parameter& parameter : model.parameters()) {
    INFO(parameter.name);
    require_close(values_of(gradients, parameter), fixture.get<float>("grad." + parameter.name), 1e-4F);
  }
}

TEST_CASE("an inference plan computes the same outputs as a training plan") {
  nn::Model model = nn::garment_classifier();
  Generator generator(1);
  model.initialize(generator);
  REQUIRE_OK(model.allocate(reference()));
  auto training = model.plan(3, nn::Mode::kTraining);
  auto inference = model.plan(3, nn::Mode::kInference);
  REQUIRE_OK(training);
  REQUIRE_OK(inference);
  std::vector<float> images(3 * 784);
  generator.uniform(images, -1, 1);
  std::copy(images.begin(), images.end(), (*training)->input());
  (*training)->forward();
  const std::vector<float> logits((*training)->output(), (*training)->output() + 30);
  std::copy(images.begin(), images.end(), (*inference)->input());
  (*inference)->forward();
  REQUIRE(std::equal(logits.begin(), logits.end(), (*inference)->output()));
  REQUIRE((*inference)->size_bytes() < (*training)->size_bytes());
  REQUIRE((*inference)->output_gradient() == nullptr);
  REQUIRE(*model.plan(3, nn::Mode::kTraining) == *training);
}

TEST_CASE("the plans of a model share the memory of the largest one") {
  const Compute compute = reference();
  nn::Model model = nn::garment_classifier();
  REQUIRE_OK(model.allocate(compute));
  const std::size_t before = memory_allocated(compute);
  const auto largest = model.plan(8, nn::Mode::kTraining);
  REQUIRE_OK(largest);
  const std::size_t with_largest = memory_allocated(compute);
  REQUIRE(with_largest >= before + (*largest)->size_bytes());
  for (const int batch : {3, 8, 5}) {
    REQUIRE_OK(model.plan(batch, nn::Mode::kInference));
    REQUIRE_OK(model.plan(std::min(batch, 7), nn::Mode::kTraining));
  }
  REQUIRE(memory_allocated(compute) == with_largest);
}

TEST_CASE("parameters lie on cache lines in one arena, gradients of gaps stay zero") {
  nn::Model model = nn::garment_classifier();
  std::size_t end = 0;
  for (const nn::Parameter& parameter : model.parameters()) {
    REQUIRE(parameter.offset % nn::kArenaAlignment == 0);
    REQUIRE(parameter.offset >= end);
    REQUIRE(parameter.offset - end < nn::kArenaAlignment);
    end = parameter.offset + parameter.count;
  }
  REQUIRE(model.arena_elements() >= end);
}

TEST_CASE("the fingerprint depends on the parameters' bits only") {
  nn::Model host = nn::garment_classifier();
  nn::Model device = nn::garment_classifier();
  Generator a(42);
  Generator b(42);
  host.initialize(a);
  device.initialize(b);
  REQUIRE_OK(device.allocate(reference()));
  const std::string before = nn::parameters_sha256(host);
  REQUIRE(before.size() == 64);
  REQUIRE(nn::parameters_sha256(device) == before);
  device.params()[0] = std::nextafter(device.params()[0], 1.0F);
  REQUIRE(nn::parameters_sha256(device) != before);
}

TEST_CASE(
    "LeNet-5 starts with PyTorch's weights, bit for bit, and one step has its logits, loss and gradients") {
  const test::Fixture fixture("pytorch_ops.safetensors");
  nn::Model model = nn::lenet5();
  Generator generator(42);
  model.initialize(generator);
  REQUIRE(model.num_parameters() == 61706);
  const std::vector<float> arena = model.read_params();
  for (const nn::Parameter& parameter : model.parameters()) {
    INFO(parameter.name);
    REQUIRE(fixture.get<std::int64_t>("lenet5." + parameter.name + ".crc") ==
            std::vector<std::int64_t>{test::crc32_of(values_of(arena, parameter))});
  }
  REQUIRE_OK(model.allocate(reference()));
  auto planned = model.plan(4, nn::Mode::kTraining);
  REQUIRE_OK(planned);
  const nn::Plan& plan = **planned;
  REQUIRE(plan.backends() == "6 muster, 1 oneDNN");  // the convolution with padding
  const auto x = fixture.get<float>("lenet5.x");
  std::copy(x.begin(), x.end(), plan.input());
  plan.forward();
  const std::array<std::int32_t, 4> labels{3, 0, 9, 3};
  LossTotals totals;
  (void)nn::cross_entropy({plan.output(), labels.data(), 4, 10, plan.output_gradient()}, &totals, nullptr);
  require_close(std::vector<float>(plan.output(), plan.output() + 40), fixture.get<float>("lenet5.logits"),
                1e-5F);
  REQUIRE(totals.loss_sum / 4 == Approx(fixture.get<float>("lenet5.loss")[0]).epsilon(1e-6));
  plan.backward();
  const std::vector<float> grads = model.read_grads();
  for (const nn::Parameter& parameter : model.parameters()) {
    INFO(parameter.name);
    double squares = 0;
    for (const float value : values_of(grads, parameter)) squares += static_cast<double>(value) * value;
    REQUIRE(std::sqrt(squares) ==
            Approx(fixture.get<float>("lenet5." + parameter.name + ".grad_norm")[0]).epsilon(1e-4));
  }
}

TEST_CASE("grouped convolutions and adaptive pooling to any size compute what PyTorch computes") {
  const test::Fixture fixture("pytorch_ops.safetensors");
  const auto check = [&](const std::string& name, const nn::Shape& input,
                         const std::function<nn::Value(nn::Value)>& build) {
    INFO(name);
    nn::Graph graph(input);
    auto model = nn::Model::create(graph, build(graph.input()), {.input_gradient = true});
    REQUIRE_OK(model);
    const auto x = fixture.get<float>(name + ".x"), dy = fixture.get<float>(name + ".dy");
    std::vector<float> arena(model->arena_elements());
    for (const nn::Parameter& parameter : model->parameters()) {
      const auto values = fixture.get<float>(name + "." + parameter.name.substr(2));
      REQUIRE(fixture.view().find(name + "." + parameter.name.substr(2))->shape == parameter.shape);
      std::copy(values.begin(), values.end(), arena.begin() + static_cast<std::ptrdiff_t>(parameter.offset));
    }
    model->write_params(arena);
    REQUIRE_OK(model->allocate(reference()));
    std::size_t sample = 1;
    for (const int size : input) sample *= static_cast<std::size_t>(size);
    auto planned = model->plan(static_cast<int>(x.size() / sample), nn::Mode::kTraining);
    REQUIRE_OK(planned);
    const nn::Plan& plan = **planned;
    std::copy(x.begin(), x.end(), plan.input());
    plan.forward();
    require_close({plan.output(), plan.output() + dy.size()}, fixture.get<float>(name + ".y"), 1e-6F);
    std::copy(dy.begin(), dy.end(), plan.output_gradient());
    plan.backward();
    require_close({plan.input_gradient(), plan.input_gradient() + x.size()}, fixture.get<float>(name + ".dx"),
                  1e-6F);
    const std::vector<float> grads = model->read_grads();
    for (const nn::Parameter& parameter : model->parameters())
      require_close(values_of(grads, parameter), fixture.get<float>(name + ".d" + parameter.name.substr(2)),
                    1e-6F);
  };
  check("groups", {6, 7, 6}, [](nn::Value x) {
    return nn::conv2d("c", x, {.out_channels = 9, .kernel = 3, .stride = 2, .padding = 1, .groups = 3});
  });
  check("depthwise", {4, 5, 6}, [](nn::Value x) {
    return nn::conv2d("c", x, {.out_channels = 8, .kernel = 3, .groups = 4, .bias = false});
  });
  check("adaptive", {3, 5, 7}, [](nn::Value x) { return nn::adaptive_avg_pool2d(x, 3, 2); });
  check("adaptive_up", {2, 3, 2}, [](nn::Value x) { return nn::adaptive_avg_pool2d(x, 5, 4); });
  check("adaptive_one", {3, 5, 7}, [](nn::Value x) { return nn::adaptive_avg_pool2d(x); });
  nn::Graph graph({6, 7, 6});
  const auto refused =
      nn::Model::create(graph, nn::conv2d("c", graph.input(), {.out_channels = 9, .kernel = 3, .groups = 4}));
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().message.find("4 groups do not divide its 6 input and 9 output channels") !=
          std::string::npos);
}
