// SPDX-License-Identifier: Apache-2.0
// PyTorch's first autograd example with an operation of this program's own: y = x^2, z = y.sum(),
// z.backward().
#include <algorithm>
#include <cstdio>

#include <muster/gradcheck.h>
#include <muster/nn.h>

using namespace muster;

namespace {

class Square final : public nn::Operation {
 public:
  std::string_view type() const override { return "Square"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  bool backward_reads_y() const override { return false; }
  void forward(const nn::Frame& f) const override {
    for (std::int64_t i = 0; i < f.y.count(); ++i) f.y.f32()[i] = f.x[0].f32()[i] * f.x[0].f32()[i];
  }
  void backward(const nn::Frame& f) const override {
    if (!f.dx[0]) return;
    for (std::int64_t i = 0; i < f.y.count(); ++i) f.dx[0].f32()[i] = 2 * f.x[0].f32()[i] * f.dy.f32()[i];
  }
};

nn::Value square(nn::Value x) {
  return nn::apply("", std::make_unique<Square>(), {x});
}

Result<void> run() {
  MUSTER_TRY(const Compute cpu, make_compute(DeviceType::kCpu));
  MUSTER_OK(nn::gradcheck(cpu, {3}, square));

  nn::Graph graph({3});
  MUSTER_TRY(nn::Model model, nn::Model::create(graph, square(graph.input()), {.input_gradient = true}));
  MUSTER_OK(model.allocate(cpu));
  MUSTER_TRY(nn::Plan* const plan, model.plan(1, nn::Mode::kTraining));
  for (int i = 0; i < 3; ++i) plan->input()[i] = static_cast<float>(i + 1);
  plan->forward();
  std::fill_n(plan->output_gradient(), 3, 1.0F);  // of the sum of y by y
  plan->backward();
  for (int i = 0; i < 3; ++i)
    std::printf("x %g  y %g  gradient %g\n", static_cast<double>(plan->input()[i]),
                static_cast<double>(plan->output()[i]), static_cast<double>(plan->input_gradient()[i]));
  return {};
}

}  // namespace

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "autograd: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
