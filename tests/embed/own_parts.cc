// SPDX-License-Identifier: Apache-2.0
// A program with an operation, a loss and an optimizer of its own, checked and trained data-parallel through
// the installed headers alone: y = silu(x W1 + b1) W2 + b2 learns the sum of its inputs.
#include <array>
#include <cmath>
#include <cstdio>

#include <muster/ddp.h>
#include <muster/gradcheck.h>
#include <muster/init.h>
#include <muster/optim.h>

using namespace muster;

namespace {

/// x * sigmoid(x).
class Silu final : public nn::Operation {
 public:
  std::string_view type() const override { return "SiLU"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  bool backward_reads_y() const override { return false; }
  void forward(const nn::Frame& f) const override {
    const float* x = f.x[0].f32();
    for (std::int64_t i = 0; i < f.y.count(); ++i) f.y.f32()[i] = x[i] / (1 + std::exp(-x[i]));
  }
  void backward(const nn::Frame& f) const override {
    const float *x = f.x[0].f32(), *dy = f.dy.f32();
    if (!f.dx[0]) return;
    for (std::int64_t i = 0; i < f.y.count(); ++i) {
      const float s = 1 / (1 + std::exp(-x[i]));
      f.dx[0].f32()[i] = dy[i] * s * (1 + x[i] * (1 - s));
    }
  }
};

nn::Value silu(nn::Value x) {
  return nn::apply("", std::make_unique<Silu>(), {x});
}

/// Mean squared error; fills `gradient`.
double mean_squared_error(std::span<const float> y, std::span<const float> wanted, float* gradient) {
  double loss = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    loss += (y[i] - wanted[i]) * (y[i] - wanted[i]);
    gradient[i] = 2 * (y[i] - wanted[i]) / static_cast<float>(y.size());
  }
  return loss / static_cast<double>(y.size());
}

/// Momentum on the signs of the gradients (Lion without its second average).
class SignSgd final : public Optimizer {
 public:
  static Result<std::unique_ptr<SignSgd>> create(nn::Model& model, float lr) {
    std::unique_ptr<SignSgd> made(new SignSgd(model));
    MUSTER_OK(made->start("SignSgd", {.lr = lr, .momentum = 0.9F}));
    return made;
  }
  std::span<const std::string_view> arena_names() const override { return kNames; }

 private:
  explicit SignSgd(nn::Model& model) : Optimizer(model) {}
  int update(const Update& u) const override {
    for (std::size_t i = 0; i < u.count; ++i) {
      float& average = u.arenas[0][i];
      average = u.state->momentum * average + u.grads[i] * u.state->factor;
      u.params[i] -= u.state->lr * static_cast<float>((average > 0) - (average < 0));
    }
    return 0;
  }
  static constexpr std::array<std::string_view, 1> kNames{"average"};
};

Result<void> run() {
  constexpr int kBatch = 8, kFeatures = 4;
  MUSTER_TRY(const Compute compute, make_compute(DeviceType::kCpu));
  MUSTER_TRY(const Context context, init());
  MUSTER_OK(nn::gradcheck(compute, {5}, silu));

  nn::Graph graph({kFeatures});
  const nn::Value h = silu(nn::linear("hidden", graph.input(), 16));
  MUSTER_TRY(nn::Model model, nn::Model::create(graph, nn::linear("output", h, 1)));
  Generator generator(1);
  model.initialize(generator);
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, compute, *context.group));
  MUSTER_TRY(const auto optimizer, SignSgd::create(model, 0.002F));
  MUSTER_TRY(nn::Plan* const plan, model.plan(kBatch, nn::Mode::kTraining));
  Generator samples(static_cast<std::uint64_t>(context.rank) + 2);
  double first = 0, last = 0;
  for (int step = 0; step < 300; ++step) {
    const std::span<float> x(plan->input(), kBatch * kFeatures);
    samples.uniform(x, -1, 1);
    std::vector<float> wanted(kBatch, 0.0F);
    for (std::size_t i = 0; i < x.size(); ++i) wanted[i / kFeatures] += x[i];
    plan->forward();
    last = mean_squared_error({plan->output(), kBatch}, wanted, plan->output_gradient());
    if (step == 0) first = last;
    MUSTER_OK(ddp->backward(*plan));
    optimizer->step();
  }
  std::printf("rank %d: the loss fell %s, parameters %s\n", context.rank,
              last < first / 20 ? "by more than 20 times" : "too little",
              nn::parameters_sha256(model).c_str());
  return {};
}

}  // namespace

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "own_parts: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
