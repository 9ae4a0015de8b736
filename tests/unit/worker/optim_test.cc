// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <muster/optim.h>
#include <muster/schedule.h>

#include "tests/support/fixture.h"
#include "worker_runtime/kernels/kernels.h"

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
        Case{"plain", {.momentum = 0.9F, .max_grad_norm = 1000}}, Case{"clip", {.max_grad_norm = 10}, 1e-6F}})
    for (const auto& make : {kernels::make_reference_kernels, kernels::make_cpu_kernels}) {
      INFO(c.name);
      const auto start = fixture.get<float>(c.name + ".params.0");
      nn::Model model = model_of(static_cast<int>(start.size()));
      REQUIRE_OK(model.allocate(Compute(make())));
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
        sgd->step();
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
    REQUIRE_OK(model.allocate(Compute(kernels::make_reference_kernels())));
    auto sgd = Sgd::create(model, {});
    REQUIRE_OK(sgd);
    REQUIRE(sgd->read_velocity().empty());
    for (int step = 0; step < 4; ++step) {
      generator.uniform(std::span(model.grads(), model.arena_elements()), -1, 1);
      sgd->step();
      if (interrupt && step == 1) {
        const std::vector<float> saved = sgd->read_velocity();
        sgd = Sgd::create(model, {});
        REQUIRE_OK(sgd);
        sgd->write_velocity(saved);
      }
    }
    results.push_back(model.read_params());
  }
  REQUIRE(results[0] == results[1]);
}

TEST_CASE("SGD options that are negative or not finite are refused") {
  nn::Model model = model_of(4);
  REQUIRE_OK(model.allocate(Compute(kernels::make_reference_kernels())));
  REQUIRE_FALSE(Sgd::create(model, {.lr = -0.1F}));
  REQUIRE_FALSE(Sgd::create(model, {.momentum = std::numeric_limits<float>::quiet_NaN()}));
  REQUIRE_FALSE(Sgd::create(model, {.weight_decay = std::numeric_limits<float>::infinity()}));
  REQUIRE_FALSE(Sgd::create(model, {.max_grad_norm = -1}));
  REQUIRE(Sgd::create(model, {.momentum = 0, .nesterov = true}).error().message ==
          "SGD: nesterov needs a momentum");
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
  REQUIRE(cosine_lr(0.4F, 100, 20, 0.01F) == 0.01F);
}
