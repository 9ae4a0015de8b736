// SPDX-License-Identifier: Apache-2.0
// The network against PyTorch: initial weights bit for bit, one training step within the kernels' tolerance.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include <muster/nn.h>

#include "tests/support/fixture.h"
#include "worker_runtime/kernels/kernels.h"

using namespace muster;

namespace {

Compute reference() {
  return Compute(kernels::make_reference_kernels());
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

/// Loss of a batch in double, through the model's own forward pass.
double loss_of(nn::Model& model, nn::Plan& plan, const std::vector<std::int32_t>& labels) {
  plan.forward();
  kernels::LossTotals totals;
  model.compute()->cross_entropy(plan.output(), labels.data(), plan.batch(), model.output_shape()[0], nullptr,
                                 &totals);
  return totals.loss_sum / plan.batch();
}

/// Central differences of every parameter (every `stride`-th) against backward.
void check_gradients(nn::Model model, int batch, std::size_t stride) {
  Generator generator(5);
  model.initialize(generator);
  REQUIRE_OK(model.allocate(reference()));
  auto planned = model.plan(batch, nn::Mode::kTraining);
  REQUIRE_OK(planned);
  nn::Plan& plan = **planned;
  const auto inputs = static_cast<std::size_t>(
      std::accumulate(model.input_shape().begin(), model.input_shape().end(), batch, std::multiplies<>()));
  generator.uniform(std::span(plan.input(), inputs), -1.0F, 1.0F);
  std::vector<std::int32_t> labels;
  for (int i = 0; i < batch; ++i) labels.push_back(i % model.output_shape()[0]);

  plan.forward();
  kernels::LossTotals totals;
  model.compute()->cross_entropy(plan.output(), labels.data(), batch, model.output_shape()[0],
                                 plan.output_gradient(), &totals);
  plan.backward();
  const std::vector<float> gradients = model.read_grads();
  const float scale = largest(gradients);
  constexpr float kStep = 1e-2F;
  for (const nn::Parameter& parameter : model.parameters())
    for (std::size_t i = 0; i < parameter.count; i += stride) {
      float& value = model.params()[parameter.offset + i];
      const float old = value;
      value = old + kStep;
      const double above = loss_of(model, plan, labels);
      value = old - kStep;
      const double below = loss_of(model, plan, labels);
      value = old;
      INFO(parameter.name << "[" << i << "]");
      const double numeric = (above - below) / (2.0 * kStep);
      REQUIRE(std::abs(numeric - gradients[parameter.offset + i]) <= 2e-2 * scale);
    }
}

nn::Model small(std::vector<nn::NamedLayer> layers, const nn::Shape& input) {
  auto model = nn::Model::create(input, std::move(layers));
  REQUIRE_OK(model);
  return *std::move(model);
}

}  // namespace

TEST_CASE("GarmentClassifier starts with PyTorch's weights, bit for bit") {
  const test::Fixture fixture("pytorch_weights.safetensors");
  for (const std::uint64_t seed : {0, 42}) {
    nn::Model model = nn::garment_classifier();
    Generator generator(seed);
    model.initialize(generator);
    REQUIRE(model.num_parameters() == 44426);
    REQUIRE(model.macs_per_sample() == 281640);
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
  for (const auto& make : {kernels::make_reference_kernels, kernels::make_cpu_kernels}) {
    const Compute compute(make());
    INFO(describe(compute));
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
    compute->gather_normalize(images.data(), labels.data(), indices.data(), 4, 784, 0.5F, 0.5F, plan.input(),
                              plan.labels());
    plan.forward();
    kernels::LossTotals totals;
    compute->cross_entropy(plan.output(), plan.labels(), 4, 10, plan.output_gradient(), &totals);
    require_close(std::vector<float>(plan.output(), plan.output() + 40), fixture.get<float>("logits"), 1e-5F);
    REQUIRE(totals.loss_sum / 4 == Approx(fixture.get<float>("loss")[0]).epsilon(1e-6));
    plan.backward();
    const std::vector<float> gradients = model.read_grads();
    for (const nn::Parameter& parameter : model.parameters()) {
      INFO(parameter.name);
      require_close(values_of(gradients, parameter), fixture.get<float>("grad." + parameter.name), 1e-4F);
    }
  }
}

TEST_CASE("gradients of Linear with ReLU agree with central differences") {
  std::vector<nn::NamedLayer> layers;
  layers.push_back({"fc1", nn::linear(7, 9, true)});
  layers.push_back({"fc2", nn::linear(9, 4)});
  check_gradients(small(std::move(layers), {7}), 3, 1);
}

TEST_CASE("gradients of Conv2d with stride and padding and of pooling agree with central differences") {
  std::vector<nn::NamedLayer> layers;
  layers.push_back({"conv1", nn::conv2d({.in_channels = 2, .out_channels = 3, .kernel = 3, .padding = 1})});
  layers.push_back({"pool", nn::relu_max_pool2d()});
  layers.push_back({"conv2", nn::conv2d({.in_channels = 3, .out_channels = 4, .kernel = 2, .stride = 2})});
  layers.push_back({"flatten", nn::flatten()});
  layers.push_back({"fc", nn::linear(4 * 2 * 2, 3)});
  check_gradients(small(std::move(layers), {2, 9, 8}), 2, 3);
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
  generator.uniform(std::span((*training)->input(), 3 * 784), -1, 1);
  std::copy_n((*training)->input(), 3 * 784, (*inference)->input());
  (*training)->forward();
  (*inference)->forward();
  REQUIRE(std::equal((*training)->output(), (*training)->output() + 30, (*inference)->output()));
  REQUIRE((*inference)->size_bytes() < (*training)->size_bytes());
  REQUIRE((*inference)->output_gradient() == nullptr);
  REQUIRE(*model.plan(3, nn::Mode::kTraining) == *training);
}

TEST_CASE("a layer that does not fit its input is refused by name") {
  std::vector<nn::NamedLayer> layers;
  layers.push_back({"fc1", nn::linear(784, 10)});
  REQUIRE(nn::Model::create({1, 28, 28}, std::move(layers)).error().message ==
          "layer 0 'fc1': Linear expects (784), its input is (1, 28, 28)");
  layers.clear();
  layers.push_back({"a", nn::linear(4, 4)});
  layers.push_back({"a", nn::linear(4, 4)});
  REQUIRE(nn::Model::create({4}, std::move(layers)).error().message == "two parameters are named 'a.weight'");
  layers.clear();
  layers.push_back({"flatten", nn::flatten()});
  REQUIRE_FALSE(nn::Model::create({4}, std::move(layers)));
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
