// SPDX-License-Identifier: Apache-2.0
// Mixed precision against PyTorch 2.14's autocast on a CPU, and the conversions against arithmetic.
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include <muster/optim.h>

#include "tests/support/bottleneck.h"
#include "tests/support/fixture.h"
#include "tests/support/thread_group.h"
#include "tests/support/trainer_run.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cast/half.h"
#include "worker_runtime/ops/cross_entropy/cross_entropy.h"

using namespace muster;

namespace {

nn::Model model_of(const std::string& kind, DType autocast) {
  if (kind == "garment") {
    nn::Model model = nn::garment_classifier({.autocast = autocast});
    Generator generator(42);
    model.initialize(generator);
    return model;
  }
  nn::Graph graph({3, 6, 6});
  const nn::Value y = test::bottleneck(graph.input(), 5);
  auto model = nn::Model::create(graph, y, {.autocast = autocast});
  REQUIRE_OK(model);
  std::vector<float> arena(model->arena_elements(), 0.0F);
  const test::Fixture fixture("pytorch_amp.safetensors");
  for (const nn::Parameter& parameter : model->parameters()) {
    const auto values = fixture.get<float>("block." + parameter.name);
    std::copy(values.begin(), values.end(), arena.begin() + static_cast<std::ptrdiff_t>(parameter.offset));
  }
  model->write_params(arena);
  return *std::move(model);
}

/// The norm of a - b over that of b.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

struct Step {
  std::vector<float> logits;
  double loss = 0;
  std::map<std::string, std::vector<float>> grads;  // the first rows of each parameter's
};

Step step_of(const std::string& kind, DType autocast) {
  const test::Fixture fixture("pytorch_amp.safetensors");
  nn::Model model = model_of(kind, autocast);
  const Compute compute = *make_compute(DeviceType::kCpu);
  REQUIRE_OK(model.allocate(compute));
  const auto x = fixture.get<float>(kind + ".x");
  const auto labels = fixture.get<std::int32_t>(kind + ".labels");
  const auto batch = static_cast<int>(labels.size());
  auto plan = model.plan(batch, nn::Mode::kTraining);
  REQUIRE_OK(plan);
  std::copy(x.begin(), x.end(), (*plan)->input());
  (*plan)->forward();
  const int classes = model.output_shape()[0];
  Step step;
  step.logits.assign((*plan)->output(), (*plan)->output() + static_cast<std::ptrdiff_t>(batch) * classes);
  LossTotals totals;
  const float scale = 128;
  (void)nn::cross_entropy(
      {(*plan)->output(), labels.data(), batch, classes, (*plan)->output_gradient(), 0, &scale}, &totals,
      nullptr);
  step.loss = totals.loss_sum / batch;
  (*plan)->backward();
  const std::vector<float> grads = model.read_grads();
  for (const nn::Parameter& parameter : model.parameters()) {
    const auto first = grads.begin() + static_cast<std::ptrdiff_t>(parameter.offset);
    const auto rows = std::min<std::int64_t>(16, parameter.shape[0]);
    step.grads[parameter.name] = {
        first, first + static_cast<std::ptrdiff_t>(parameter.count) / parameter.shape[0] * rows};
  }
  return step;
}

}  // namespace

TEST_CASE("a step under autocast has PyTorch's logits, loss and gradients") {
  const test::Fixture fixture("pytorch_amp.safetensors");
  for (const std::string kind : {"garment", "block"})
    for (const auto& [name, dtype, tolerance] :
         {std::tuple("BF16", DType::kBFloat16, 1e-2), std::tuple("F16", DType::kFloat16, 2e-3)}) {
      const std::string prefix = kind + "." + name + ".";
      INFO(prefix);
      const Step step = step_of(kind, dtype), exact = step_of(kind, DType::kFloat32);
      const auto logits = fixture.get<float>(prefix + "logits");
      REQUIRE(distance(step.logits, logits) <= tolerance);
      REQUIRE(step.loss == Approx(fixture.get<float>(prefix + "loss")[0]).epsilon(tolerance));
      double nearer = 0, farther = 0;
      for (const auto& [parameter, gradient] : step.grads) {
        const auto expected = fixture.get<float>(prefix + "grad." + parameter);
        INFO(parameter);
        REQUIRE(distance(gradient, expected) <= 3 * tolerance);
        nearer += distance(gradient, expected);
        farther += distance(exact.grads.at(parameter), expected);
      }
      // Not merely float32: the same roundings.
      REQUIRE(nearer < farther / 2);
    }
}

TEST_CASE("what lies between operations is kept in the lower precision") {
  std::size_t bytes[2];
  for (const bool lower : {false, true}) {
    auto model = nn::resnet(50, {3, 128, 128}, 10, {.autocast = lower ? DType::kBFloat16 : DType::kFloat32});
    REQUIRE_OK(model);
    REQUIRE_OK(model->allocate(*make_compute(DeviceType::kCpu)));
    const auto plan = model->plan(8, nn::Mode::kTraining);
    REQUIRE_OK(plan);
    bytes[lower ? 1 : 0] = (*plan)->size_bytes();
  }
  REQUIRE(bytes[1] < 0.65 * static_cast<double>(bytes[0]));
}

TEST_CASE("training in half precision with a gradient scaler learns what float32 learns") {
  const ImageDataset dataset = testing::striped_images(50);
  const auto group = make_single_group();
  double last[3];
  for (const DType autocast : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    nn::Model model = nn::garment_classifier({.autocast = autocast});
    Generator generator(1);
    model.initialize(generator);
    const Compute compute = *make_compute(DeviceType::kCpu);
    const auto ddp = DistributedDataParallel::create(model, compute, *group);
    REQUIRE_OK(ddp);
    const auto data = DeviceDataset::upload(compute, dataset);
    REQUIRE_OK(data);
    const auto sgd = Sgd::create(model, {.lr = 0.05F});
    REQUIRE_OK(sgd);
    if (autocast == DType::kFloat16) REQUIRE_OK((*sgd)->use_grad_scaler({.init_scale = 16777216}));
    const auto trainer = Trainer::create(**ddp, **sgd, *data, {.batch_size = 10});
    REQUIRE_OK(trainer);
    std::vector<std::int32_t> indices(50);
    for (std::size_t i = 0; i < 50; ++i) indices[i] = static_cast<std::int32_t>(i);
    double loss = 0;
    for (int epoch = 0; epoch < 15; ++epoch) {
      REQUIRE_OK((*trainer)->begin_epoch(indices));
      for (int step = 0; step < 5; ++step) REQUIRE_OK((*trainer)->step());
      const auto metrics = (*trainer)->take_metrics();
      REQUIRE_OK(metrics);
      loss = metrics->loss();
    }
    last[autocast == DType::kFloat32 ? 0 : autocast == DType::kBFloat16 ? 1 : 2] = loss;
    // The first scale overflows float16: the scaler has come down.
    if (autocast == DType::kFloat16) REQUIRE((*sgd)->read_state().loss_scale < 16777216);
  }
  REQUIRE(last[0] < 0.2);
  REQUIRE(last[1] < 0.3);
  REQUIRE(last[2] < 0.3);
}

TEST_CASE("conversions to half precision round to the nearest, of two the even one") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float b = nn::from_bf16(half), h = nn::from_f16(half);
    INFO(bits);
    if (!std::isnan(b)) REQUIRE(nn::to_bf16(b) == half);
    if (std::isnan(b)) REQUIRE(std::isnan(nn::from_bf16(nn::to_bf16(b))));
    if (!std::isnan(h)) REQUIRE(nn::to_f16(h) == half);
    if (std::isnan(h)) REQUIRE(std::isnan(nn::from_f16(nn::to_f16(h))));
    if ((bits & 0x8000U) != 0) continue;
    // Half way to the next: the even one; a little less or more: the nearer.
    const auto check = [&](float value, float next, auto to) {
      const float middle = value + (next - value) / 2;  // exact
      REQUIRE(to(middle) == (bits % 2 == 0 ? bits : bits + 1));
      REQUIRE(to(std::nextafter(middle, 0.0F)) == bits);
      REQUIRE(to(std::nextafter(middle, std::numeric_limits<float>::infinity())) == bits + 1);
    };
    if (bits < 0x7f7f && bits >= 0x0080)
      check(b, nn::from_bf16(static_cast<std::uint16_t>(bits + 1)), nn::to_bf16);
    if (bits < 0x7bff) check(h, nn::from_f16(static_cast<std::uint16_t>(bits + 1)), nn::to_f16);
  }
  REQUIRE(nn::from_f16(nn::to_f16(65519)) == 65504);
  REQUIRE(std::isinf(nn::from_f16(nn::to_f16(65520))));
}

TEST_CASE("autocast to a type that nothing computes in is refused") {
  nn::Graph graph({4});
  const auto model =
      nn::Model::create(graph, nn::linear("fc", graph.input(), 1), {.autocast = DType::kInt32});
  REQUIRE_FALSE(model);
  REQUIRE(model.error().message == "autocast to I32; it takes F32, BF16 or F16");
}
