// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/step_graph.h"

#include "tests/gpu/tiny_training.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/reference_kernels.h"

using namespace muster;
using namespace muster::testing;

namespace {

std::vector<float> train(testing::Kernels& kernels, StepGraph& steps, int count) {
  TinyTraining training(kernels);
  REQUIRE_OK(training.prepare());
  for (int step = 0; step < count; ++step) {
    training.choose(step, step == 0);
    REQUIRE_OK(steps.run(0, [&] { return training.step(nullptr); }));
  }
  auto parameters = training.parameters();
  REQUIRE_OK(parameters);
  return *parameters;
}

}  // namespace

TEST_CASE("a captured training step computes the same bits as the step called kernel by kernel") {
  require_gpu();
  auto kernels = testing::make_cuda_kernels(0);
  REQUIRE_OK(kernels);
  const auto called = std::make_unique<StepGraph>(nullptr);
  const auto captured = std::make_unique<StepGraph>((*kernels)->make_step_recorder());
  const auto expected = train(**kernels, *called, 20);
  const auto actual = train(**kernels, *captured, 20);
  REQUIRE(std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)) == 0);
  REQUIRE(called->num_replays() == 0);
  REQUIRE(captured->num_replays() == 18);  // the first is called, the second captured
}

TEST_CASE("the GPU trains as the reference does") {
  require_gpu();
  auto kernels = testing::make_cuda_kernels(0);
  REQUIRE_OK(kernels);
  const auto reference = testing::make_reference_kernels();
  const auto called = std::make_unique<StepGraph>(nullptr);
  const auto expected = train(*reference, *called, 20);
  REQUIRE(relative_error(train(**kernels, *called, 20), expected) <= 1e-4);
}

TEST_CASE("an error of the step during its capture is returned, and the stream takes work again") {
  require_gpu();
  auto kernels = testing::make_cuda_kernels(0);
  REQUIRE_OK(kernels);
  const auto steps = std::make_unique<StepGraph>((*kernels)->make_step_recorder());
  REQUIRE_OK(steps->run(1, []() -> Result<void> { return {}; }));
  const auto failed =
      steps->run(1, []() -> Result<void> { return fail(ErrorCode::kMismatch, "shapes differ"); });
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().code == ErrorCode::kMismatch);
  REQUIRE_OK(steps->run(2, []() -> Result<void> { return {}; }));
  auto memory = (*kernels)->allocate(64);
  REQUIRE_OK(memory);
  REQUIRE_OK((*kernels)->synchronize());
}

TEST_CASE("a step that cannot be captured is called instead, and leaves no error behind") {
  require_gpu();
  auto made = testing::make_cuda_kernels(0);
  REQUIRE_OK(made);
  testing::Kernels& kernels = **made;
  auto memory = kernels.allocate(64);
  REQUIRE_OK(memory);
  std::string reason;
  StepGraphHooks hooks;
  hooks.on_give_up = [&](const Error& error) { reason = error.message; };
  const auto steps = std::make_unique<StepGraph>(kernels.make_step_recorder(), hooks);
  std::int32_t value = 0;
  const auto step = [&]() -> Result<void> {
    ++value;
    kernels.copy_to_device(*memory, &value, sizeof value);  // waits for the stream, which a capture forbids
    return {};
  };
  for (int i = 0; i < 4; ++i) REQUIRE_OK(steps->run(1, step));
  REQUIRE_FALSE(reason.empty());
  REQUIRE(steps->num_replays() == 0);
  REQUIRE_OK(kernels.synchronize());
  std::int32_t read = 0;
  kernels.copy_to_host(&read, *memory, sizeof read);
  REQUIRE(read == 5);  // the second step was begun twice
}
