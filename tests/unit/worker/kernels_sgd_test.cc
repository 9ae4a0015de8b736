// SPDX-License-Identifier: Apache-2.0
// SGD against bits printed by PyTorch 1.13.1's torch.optim.SGD on a CPU, by vectors and by elements.
#include <bit>
#include <cstdint>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/optimizer_forms.h"

using namespace muster;

namespace {

using Bits = std::vector<std::uint32_t>;

std::vector<float> floats(const Bits& bits) {
  std::vector<float> values;
  for (const std::uint32_t b : bits) values.push_back(std::bit_cast<float>(b));
  return values;
}

Bits bits(const std::vector<float>& values) {
  Bits result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

struct Step {
  Bits grads, params, velocity;
};

/// Runs the steps on arrays that repeat the case `copies` times, so that vectors and remainders are both
/// exercised.
void check(const SgdOptions& options, const Bits& params, const std::vector<Step>& steps) {
  const StepState state{.lr = options.lr, .momentum = options.momentum};
  for (const auto& update : {optim::sgd_update, testing::sgd_elements}) {
    for (const std::size_t copies : {1U, 3U, 7U, 29U}) {
      const auto repeat = [&](const Bits& one) {
        Bits all;
        for (std::size_t k = 0; k < copies; ++k) all.insert(all.end(), one.begin(), one.end());
        return all;
      };
      std::vector<float> p = floats(repeat(params));
      std::vector<float> v(p.size(), 0.0F);
      for (const Step& step : steps) {
        const std::vector<float> g = floats(repeat(step.grads));
        update(options, state, p.data(), g.data(), v.data(), p.size());
        REQUIRE(bits(p) == repeat(step.params));
        if (!step.velocity.empty()) REQUIRE(bits(v) == repeat(step.velocity));
      }
    }
  }
}

}  // namespace

TEST_CASE("three steps of SGD with momentum give PyTorch's bits") {
  check({0.001F, 0.9F, 0.0F}, {0x3da482cd, 0x3c8f3938, 0x3c11c81f, 0xbd7b6100, 0x3b9754a6},
        {{{0xbfaf231e, 0x3eaccc28, 0x3f816c3f, 0xbfb7b3f5, 0x3f7a38f8},
          {0x3da7502a, 0x3c8c7571, 0x3c013732, 0xbd75801b, 0x3b6e9ab6},
          {0xbfaf231e, 0x3eaccc28, 0x3f816c3f, 0xbfb7b3f5, 0x3f7a38f8}},
         {{0x3f05a511, 0x3f9e740e, 0xbf5d58c2, 0x3e991165, 0x3ed6a3d4},
          {0x3da8c416, 0x3c7fa8af, 0x3c0078e8, 0xbd716f2f, 0x3b197aa9},
          {0xbf359a25, 0x3fc55530, 0x3d39d490, 0xbf7e21a0, 0x3fa64298}},
         {{0xbda38aaa, 0x3f6d2943, 0x3f50d03e, 0x3efd896a, 0xbe2842b6},
          {0x3daa3caf, 0x3c59bf74, 0x3be4e0e4, 0xbd6fcd99, 0x3aaf4533},
          {0xbf37e276, 0x4014170d, 0x3f5b4433, 0xbecbe64e, 0x3f8099fe}}});
}

TEST_CASE("three steps of SGD with momentum and weight decay give PyTorch's bits") {
  check({0.01F, 0.9F, 0.0005F}, {0xbd8ad8bf, 0xbdd8e7bb, 0x3d9920d7, 0x3cc3b89d, 0xbd209fef},
        {{{0x3e1b8f94, 0xbf978492, 0x3f08cbdd, 0xbfb9bb1d, 0xbf211ea8},
          {0xbd8df50a, 0xbdc0a948, 0x3d8e2f0e, 0x3d1d4b42, 0xbd06d843},
          {0x3e1b86b1, 0xbf97864e, 0x3f08ce50, 0xbfb9bab9, 0xbf211ff1}},
         {{0x3e1e1efe, 0xbe7df122, 0x3ee8314e, 0x3c4619b6, 0x3fabc7d2},
          {0xbd93eb1a, 0xbda5c30c, 0x3d76173a, 0x3d5249bb, 0xbd269ca6},
          {0x3e950790, 0xbfa81ef5, 0x3f6f3b02, 0xbfa59b39, 0x3f468b6b}},
         {{0x3fbb22f0, 0x3edf507e, 0x3f822d80, 0xc00c525c, 0x3e596d36},
          {0xbdb7397a, 0xbd967bf7, 0x3d29fbc2, 0x3dade4cc, 0xbd4be608},
          {0x3fdca9db, 0xbf3ef886, 0x3fedd5d6, 0xc056d7ca, 0x3f690aa5}}});
}

TEST_CASE("three steps of SGD without momentum give PyTorch's bits") {
  check({0.1F, 0.0F, 0.0F}, {0xbdc068b1, 0xbd0489a4, 0xbdd8013a},
        {{{0x3f52e2c5, 0xbf06ecc3, 0x3f4f8bbb}, {0xbe348f0e, 0x3ca6af28, 0xbe3f054e}, {}},
         {{0xbf4df9c8, 0xbf866881, 0xbde0920c}, {0xbdc45649, 0x3e005cb3, 0xbe33cacd}, {}},
         {{0x3eb4b820, 0xbee3b006, 0xbf736ccc}, {0xbe064ff8, 0x3e2de64e, 0xbda4d82a}, {}}});
}

TEST_CASE("a gradient scale multiplies the gradient before everything else") {
  for (const auto& update : {optim::sgd_update, testing::sgd_elements}) {
    std::vector<float> p(37, 1.0F), g(37, 8.0F), v(37, 0.0F);
    const SgdOptions options{0.5F, 0.5F, 0.25F};
    const StepState state{.lr = 0.5F, .momentum = 0.5F, .factor = 0.125F};
    update(options, state, p.data(), g.data(), v.data(), p.size());
    REQUIRE(v == std::vector<float>(37, 1.25F));
    REQUIRE(p == std::vector<float>(37, 0.375F));
    update(options, state, p.data(), g.data(), v.data(), 0);
    REQUIRE(p == std::vector<float>(37, 0.375F));
  }
}
