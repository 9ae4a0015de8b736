// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <set>

#include <muster/optim.h>
#include <muster/schedule.h>

#include "tests/support/fixture.h"
#include "tests/support/reference_kernels.h"
#include "worker_runtime/device/device.h"

using namespace muster;

namespace {

nn::Model model_of(int elements) {
  nn::Graph graph({elements - 1});
  auto model =
      nn::Model::create(graph, nn::linear("fc", graph.input(), 1));  // elements - 1 weights, one bias
  REQUIRE_OK(model);
  return *std::move(model);
}

}  // namespace

TEST_CASE(
    "steps of SGD are bit-equal to PyTorch's: momentum, Nesterov's, weight decay, a norm that is not "
    "clipped") {
  const test::Fixture fixture("pytorch_sgd.safetensors");
  struct Case {
    std::string name;
    SgdOptions options;
    float tolerance = 0;  // PyTorch adds up the norm in float
  };
  for (const Case& c :
       {Case{"plain", {0.001F, 0.9F, 0.0F}}, Case{"decay", {0.001F, 0.9F, 0.01F}},
        Case{"no_momentum", {0.001F, 0.0F, 0.0F}}, Case{"nesterov", {0.001F, 0.9F, 0.01F, true}},
        Case{"plain", {.momentum = 0.9F, .max_grad_norm = 1000}},
        Case{"clip", {.max_grad_norm = 10}, 1e-6F}}) {
    INFO(c.name);
    const auto start = fixture.get<float>(c.name + ".params.0");
    nn::Model model = model_of(static_cast<int>(start.size()));
    REQUIRE_OK(model.allocate(*make_compute(DeviceType::kCpu)));
    auto sgd = Sgd::create(model, c.options);
    REQUIRE_OK(sgd);
    // The arena has a gap between weight and bias; the fixture's last element is the bias.
    const std::size_t bias = model.parameters()[1].offset;
    const auto put = [&](float* arena, const std::vector<float>& values) {
      std::copy(values.begin(), values.end() - 1, arena);
      arena[bias] = values.back();
    };
    put(model.params(), start);
    for (int step = 1; step <= 3; ++step) {
      put(model.grads(), fixture.get<float>(c.name + ".grads." + std::to_string(step)));
      (*sgd)->step();
      const auto expected = fixture.get<float>(c.name + ".params." + std::to_string(step));
      INFO("step " << step);
      const auto agrees = [&](float a, float b) { return std::abs(a - b) <= c.tolerance; };
      REQUIRE(std::equal(expected.begin(), expected.end() - 1, model.params(), agrees));
      REQUIRE(agrees(model.params()[bias], expected.back()));
    }
  }
}

TEST_CASE("an optimizer continued from its saved momentum goes on with the same bits") {
  std::vector<std::vector<float>> results;
  for (const bool interrupt : {false, true}) {
    nn::Model model = model_of(100);
    Generator generator(1);
    model.initialize(generator);
    REQUIRE_OK(model.allocate(*make_compute(DeviceType::kCpu)));
    auto sgd = Sgd::create(model, {});
    REQUIRE_OK(sgd);
    for (int step = 0; step < 4; ++step) {
      generator.uniform(std::span(model.grads(), model.arena_elements()), -1, 1);
      (*sgd)->step();
      if (interrupt && step == 1) {
        const OptimizerState saved = (*sgd)->read_state();
        sgd = Sgd::create(model, {});
        REQUIRE_OK(sgd);
        (*sgd)->write_state(saved);
      }
    }
    results.push_back(model.read_params());
  }
  REQUIRE(results[0] == results[1]);
}

TEST_CASE("SGD options that are negative or not finite are refused") {
  nn::Model model = model_of(4);
  REQUIRE_OK(model.allocate(*make_compute(DeviceType::kCpu)));
  REQUIRE_FALSE(Sgd::create(model, {.lr = -0.1F}));
  REQUIRE_FALSE(Sgd::create(model, {.momentum = std::numeric_limits<float>::quiet_NaN()}));
  REQUIRE_FALSE(Sgd::create(model, {.weight_decay = std::numeric_limits<float>::infinity()}));
  REQUIRE_FALSE(Sgd::create(model, {.max_grad_norm = -1}));
  REQUIRE(Sgd::create(model, {.momentum = 0, .nesterov = true}).error().message ==
          "SGD: nesterov needs a momentum");
}

namespace {

/// A model of one Linear whose parameters and gradients are those of a fixture's flat tensors.
struct Flat {
  nn::Model model;
  std::size_t bias;
  explicit Flat(const std::vector<float>& start, const Compute& compute)
      : model(model_of(static_cast<int>(start.size()))), bias(model.parameters()[1].offset) {
    REQUIRE_OK(model.allocate(compute));
    put(model.params(), start);
  }
  void put(float* arena, const std::vector<float>& values) const {
    std::copy(values.begin(), values.end() - 1, arena);
    arena[bias] = values.back();
  }
  std::vector<float> params() const {
    const std::size_t weights = model.parameters()[0].count;
    std::vector<float> values(model.params(), model.params() + weights);
    values.push_back(model.params()[bias]);
    return values;
  }
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("steps of AdamW are PyTorch's within 1e-6: weight decay, clipping, continued from a saved state") {
  const test::Fixture fixture("pytorch_amp.safetensors");
  struct Case {
    std::string name;
    AdamWOptions options;
  };
  for (const Case& c :
       {Case{"adamw", {.lr = 0.01F}}, Case{"adamw_decay", {.lr = 0.01F, .weight_decay = 0.3F}},
        Case{"adamw_clip", {.lr = 0.01F, .max_grad_norm = 10}}}) {
    const Compute compute = *make_compute(DeviceType::kCpu);
    Flat flat(fixture.get<float>(c.name + ".params.0"), compute);
    auto adamw = AdamW::create(flat.model, c.options);
    REQUIRE_OK(adamw);
    for (int step = 1; step <= 6; ++step) {
      flat.put(flat.model.grads(), fixture.get<float>(c.name + ".grads." + std::to_string(step)));
      (*adamw)->step();
      INFO(c.name << ", step " << step);
      REQUIRE(largest_difference(flat.params(),
                                 fixture.get<float>(c.name + ".params." + std::to_string(step))) <= 1e-6);
      if (step != 3) continue;
      const OptimizerState saved = (*adamw)->read_state();
      REQUIRE(saved.steps == 3);
      adamw = AdamW::create(flat.model, c.options);
      REQUIRE_OK(adamw);
      (*adamw)->write_state(saved);
    }
  }
}

TEST_CASE(
    "without beta1 the average of AdamW is the gradient, however large the last one was, as PyTorch's is") {
  const Compute compute = *make_compute(DeviceType::kCpu);
  Flat flat(std::vector<float>(20, 1.0F), compute);  // a whole vector and a rest
  const auto adamw = AdamW::create(flat.model, {.lr = 0.1F, .beta1 = 0, .beta2 = 0, .weight_decay = 0});
  REQUIRE_OK(adamw);
  for (const float gradient : {1e8F, 1.0F}) {
    flat.put(flat.model.grads(), std::vector<float>(20, gradient));
    (*adamw)->step();
    REQUIRE((*adamw)->read_state().arenas[0][0] == gradient);
    REQUIRE((*adamw)->read_state().arenas[0][flat.bias] == gradient);
  }
  REQUIRE(largest_difference(flat.params(), std::vector<float>(20, 0.8F)) <= 1e-6);
}

TEST_CASE("a gradient scaler skips, backs off and grows where PyTorch's does") {
  const test::Fixture fixture("pytorch_amp.safetensors");
  const Compute compute = *make_compute(DeviceType::kCpu);
  Flat flat(fixture.get<float>("scaler.params.0"), compute);
  auto sgd = Sgd::create(flat.model, {.lr = 0.01F});
  REQUIRE_OK(sgd);
  REQUIRE_OK((*sgd)->use_grad_scaler({.init_scale = 1024, .growth_interval = 2}));
  const auto scales = fixture.get<float>("scaler.scales");
  std::set<float> seen;
  for (int step = 1; step <= 9; ++step) {
    flat.put(flat.model.grads(), fixture.get<float>("scaler.grads." + std::to_string(step)));
    (*sgd)->step();
    INFO("step " << step);
    REQUIRE(flat.params() == fixture.get<float>("scaler.params." + std::to_string(step)));
    REQUIRE((*sgd)->step_state()->loss_scale == scales[static_cast<std::size_t>(step - 1)]);
    seen.insert(scales[static_cast<std::size_t>(step - 1)]);
    if (step != 4) continue;
    const OptimizerState saved = (*sgd)->read_state();
    sgd = Sgd::create(flat.model, {.lr = 0.01F});
    REQUIRE_OK(sgd);
    REQUIRE_OK((*sgd)->use_grad_scaler({.growth_interval = 2}));
    (*sgd)->write_state(saved);
  }
  REQUIRE(seen.size() > 2);
  for (const GradScalerOptions& wrong :
       {GradScalerOptions{.init_scale = 0}, GradScalerOptions{.growth_factor = 1},
        GradScalerOptions{.backoff_factor = 1}, GradScalerOptions{.growth_interval = 0}})
    REQUIRE((*sgd)->use_grad_scaler(wrong).error().code == ErrorCode::kInvalidArgument);
}

TEST_CASE("label smoothing is PyTorch's") {
  const test::Fixture fixture("pytorch_amp.safetensors");
  const auto logits = fixture.get<float>("smoothing.logits"),
             expected = fixture.get<float>("smoothing.gradient");
  const auto labels = fixture.get<std::int32_t>("smoothing.labels");
  for (const auto& make : {testing::make_reference_kernels, testing::make_cpu_kernels}) {
    const auto kernels = make();
    std::vector<float> gradient(logits.size());
    LossTotals totals;
    kernels->cross_entropy({logits.data(), labels.data(), 7, 13, gradient.data(), 0.1F}, &totals);
    REQUIRE(largest_difference(gradient, expected) <= 1e-7);
    REQUIRE(totals.loss_sum / 7 == Approx(fixture.get<float>("smoothing.loss")[0]).epsilon(1e-6));
  }
}

TEST_CASE("AdamW's options that make no sense are refused") {
  nn::Model model = model_of(4);
  REQUIRE_OK(model.allocate(*make_compute(DeviceType::kCpu)));
  REQUIRE_FALSE(AdamW::create(model, {.lr = -1}));
  REQUIRE_FALSE(AdamW::create(model, {.beta1 = 1}));
  REQUIRE(AdamW::create(model, {.eps = -1}).error().message ==
          "AdamW: eps is -1; it must be finite and not negative");
  REQUIRE(AdamW::create(model, {.eps = 0}).error().message ==
          "AdamW: eps is 0, which divides a gradient of 0 by 0; try 1e-8");
}

TEST_CASE("learning rates by step are those of PyTorch's schedulers") {
  const test::Fixture fixture("pytorch_sgd.safetensors");
  const auto step = fixture.get<float>("lr.step"), cosine = fixture.get<float>("lr.cosine"),
             warm_up = fixture.get<float>("lr.warm_up");
  REQUIRE(step.size() == 21);
  for (std::size_t i = 0; i < step.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    INFO("step " << i);
    REQUIRE(step_lr(0.4F, at, 7, 0.3) == Approx(step[i]).epsilon(1e-6));
    REQUIRE(cosine_lr(0.4F, at, 20, 0.01F) == Approx(cosine[i]).epsilon(1e-6));
    REQUIRE(0.4F * warm_up_factor(at, 5) == Approx(warm_up[i]).epsilon(1e-6));
  }
  REQUIRE(step_lr(0.4F, 9, 0) == 0.4F);
  REQUIRE(cosine_lr(0.4F, 100, 20, 0.01F) == 0.01F);
}
