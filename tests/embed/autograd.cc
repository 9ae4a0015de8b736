// SPDX-License-Identifier: Apache-2.0
// x^2, summed, backward: PyTorch's first autograd example, with an operation of this program's own.
#include <algorithm>
#include <cstdio>

#include <muster/gradcheck.h>
#include <muster/nn.h>

using namespace muster;

struct Square final : nn::Operation {
  std::string_view type() const override { return "Square"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  void forward(const nn::Frame& f) const override {
    const float* x = f.x[0].f32();
    for (std::int64_t i = 0; i < f.y.count(); ++i) f.y.f32()[i] = x[i] * x[i];
  }
  void backward(const nn::Frame& f) const override {
    const float *x = f.x[0].f32(), *dy = f.dy.f32();
    if (!f.dx[0]) return;
    for (std::int64_t i = 0; i < f.y.count(); ++i) f.dx[0].f32()[i] = 2 * x[i] * dy[i];
  }
};

static nn::Value square(nn::Value x) {
  return nn::apply("", std::make_unique<Square>(), {x});
}

static Result<void> run() {
  MUSTER_TRY(const Compute cpu, make_compute(DeviceType::kCpu));
  MUSTER_OK(nn::gradcheck(cpu, {3}, square));
  nn::Graph graph({3});
  MUSTER_TRY(nn::Model model, nn::Model::create(graph, square(graph.input()), {.input_gradient = true}));
  MUSTER_OK(model.allocate(cpu));
  MUSTER_TRY(nn::Plan* const plan, model.plan(1, nn::Mode::kTraining));
  for (int i = 0; i < 3; ++i) plan->input()[i] = static_cast<float>(i + 1);
  plan->forward();
  std::fill_n(plan->output_gradient(), 3, 1.0F);  // what a sum hands back
  plan->backward();
  for (int i = 0; i < 3; ++i)
    std::printf("x %g  y %g  gradient %g\n", plan->input()[i], plan->output()[i], plan->input_gradient()[i]);
  return {};
}

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "autograd: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
