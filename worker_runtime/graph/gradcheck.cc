// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include <muster/gradcheck.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"

namespace muster::nn {

Result<void> gradcheck(const Compute& compute, const Shape& input, const std::function<Value(Value)>& build,
                       const GradcheckOptions& options) {
  Graph graph(input);
  const Value output = build(graph.input());
  MUSTER_TRY(Model model, Model::create(graph, output, {.fuse = options.fuse, .input_gradient = true}));
  Generator generator(options.seed);
  model.initialize(generator);
  MUSTER_OK(model.allocate(compute));
  MUSTER_TRY(Plan* const plan, model.plan(options.batch, Mode::kTraining));
  const auto zeros = [&](const Shape& shape) {
    return std::vector<float>(static_cast<std::size_t>(elements_of(shape, options.batch)));
  };
  std::vector<float> x = zeros(input), weights = zeros(model.output_shape()), y(weights.size());
  generator.uniform(x, -1, 1);
  generator.uniform(weights, -1, 1);
  std::vector<float> params = model.read_params();

  const auto loss = [&] {
    plan->forward();
    compute->copy_to_host(y.data(), plan->output(), y.size() * sizeof(float));
    return std::inner_product(y.begin(), y.end(), weights.begin(), 0.0, std::plus<>(),
                              [](double a, double b) { return a * b; });
  };
  const auto upload_input = [&] {
    compute->copy_to_device(plan->input(), x.data(), x.size() * sizeof(float));
  };
  upload_input();
  (void)loss();
  compute->copy_to_device(plan->output_gradient(), weights.data(), weights.size() * sizeof(float));
  plan->backward();
  std::vector<float> dx(x.size());
  compute->copy_to_host(dx.data(), plan->input_gradient(), dx.size() * sizeof(float));
  const std::vector<float> grads = model.read_grads();

  const auto check = [&](const std::string& name, std::span<float> values, std::span<const float> gradients,
                         const auto& upload) -> Result<void> {
    double scale = 1;
    for (const float gradient : gradients) scale = std::max(scale, std::abs(static_cast<double>(gradient)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float old = values[i];
      const auto at = [&](double value) {
        values[i] = static_cast<float>(value);
        upload();
        return loss();
      };
      const double numeric = (at(old + options.step) - at(old - options.step)) / (2 * options.step);
      values[i] = old;
      upload();
      if (!(std::abs(numeric - static_cast<double>(gradients[i])) <= options.tolerance * scale))
        return fail(ErrorCode::kMismatch, "gradcheck: {}[{}]: backward says {}, central differences {}", name,
                    i, gradients[i], numeric);
    }
    return {};
  };
  MUSTER_OK(check("input", x, dx, upload_input));
  for (const Parameter& parameter : model.parameters())
    MUSTER_OK(check(parameter.name, std::span(params).subspan(parameter.offset, parameter.count),
                    std::span(grads).subspan(parameter.offset, parameter.count),
                    [&] { model.write_params(params); }));
  return compute->synchronize();
}

}  // namespace muster::nn
