// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/tiny_training.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernels_agreement.h"
#include "tests/support/reference_kernels.h"
#include "tests/unit/cuda/body_kernels.h"

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
  kernels->cross_entropy({logits, &label, 1, 2, nullptr}, &totals);
  REQUIRE(std::isnan(totals.loss_sum));
}

TEST_CASE("a small network trained with the CUDA bodies follows the one trained with the reference") {
  const auto train = [](Kernels& kernels) {
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
  REQUIRE(relative_error(train(*make_body_kernels()), train(*make_reference_kernels())) <= 1e-4);
}
