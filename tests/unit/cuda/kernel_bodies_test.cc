// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/tiny_training.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernels_agreement.h"
#include "tests/support/reference_kernels.h"
#include "tests/unit/cuda/body_kernels.h"
#include "worker_runtime/kernels/cuda/elementwise_body.h"

using namespace muster;
using namespace muster::testing;

TEST_CASE("the CUDA gather body normalises the chosen images as the reference does") {
  check_gather_normalize(*make_body_kernels());
}

TEST_CASE("the CUDA convolution bodies compute forward, data and filter gradients as the reference does") {
  for (const auto& shape : conv_cases()) check_conv2d(*make_body_kernels(), shape);
}

TEST_CASE("the CUDA convolution bodies also sum over blocks of 1024 threads") {
  check_conv2d(*make_body_kernels(),
               {.batch = 29, .in_channels = 1, .height = 28, .width = 28, .out_channels = 2, .kernel = 5});
}

TEST_CASE("the CUDA linear bodies compute the reference's outputs and gradients at every tile remainder") {
  for (const auto& shape : linear_cases()) check_linear(*make_body_kernels(), shape);
  for (int batch = 1; batch <= 17; ++batch) check_linear(*make_body_kernels(), {batch, 35, 6});
}

TEST_CASE("the CUDA cross-entropy body agrees with the reference for few and many rows and classes") {
  for (const int batch : {1, 2, 4, 31, 32, 33, 100, 256})
    for (const int classes : {1, 2, 10, 32, 33, 1000})
      for (const float smoothing : {0.0F, 0.1F})
        check_cross_entropy(*make_body_kernels(), batch, classes, smoothing);
}

TEST_CASE("a label outside the classes shows as a loss that is not a number") {
  const auto kernels = make_body_kernels();
  const float logits[2] = {0.0F, 1.0F};
  const std::int32_t label = 7;
  LossTotals totals;
  kernels->cross_entropy(logits, &label, 1, 2, nullptr, &totals, {});
  REQUIRE(std::isnan(totals.loss_sum));
}

TEST_CASE("the ReLU mask body zeroes where the output is not positive and lets a NaN pass") {
  std::vector<float> y{1.0F, 0.0F, -1.0F, NAN}, dy{2.0F, 3.0F, 4.0F, 5.0F};
  for (unsigned thread = 0; thread < kernels::cuda::kBlock; ++thread)
    kernels::cuda::relu_mask_cell(y.data(), dy.data(), 4, {0, 0, thread});
  REQUIRE(dy == std::vector<float>{2.0F, 0.0F, 0.0F, 5.0F});
}

TEST_CASE("the bias body adds each channel's bias to all of its pixels") {
  std::vector<float> y(2 * 3 * 200, 1.0F);  // (batch, channels, pixels), more than one block
  const std::vector<float> bias{10.0F, 20.0F, 30.0F};
  const auto count = static_cast<std::int64_t>(y.size());
  for (unsigned block = 0; block < kernels::cuda::flat_grid(count).x; ++block)
    for (unsigned thread = 0; thread < kernels::cuda::kBlock; ++thread)
      kernels::cuda::add_bias_cell(y.data(), bias.data(), count, 3, 200, {block, 0, thread});
  for (std::size_t i = 0; i < y.size(); ++i) REQUIRE(y[i] == 1.0F + bias[i / 200 % 3]);
}

TEST_CASE("a small network trained with the CUDA bodies follows the one trained with the reference") {
  const auto train = [](kernels::Kernels& kernels) {
    TinyTraining training(kernels);
    REQUIRE_OK(training.prepare());
    for (int step = 0; step < 20; ++step) {
      training.choose(step, step == 0);
      REQUIRE_OK(training.step(nullptr));
    }
    const auto parameters = training.parameters();
    REQUIRE_OK(parameters);
    return *parameters;
  };
  REQUIRE(relative_error(train(*make_body_kernels()), train(*kernels::make_reference_kernels())) <= 1e-4);
}
