// SPDX-License-Identifier: Apache-2.0
// Shapes and inputs on which an implementation of the kernels is compared with the reference, on the CPU
// and on a GPU. Inputs are a fixed pseudo-random sequence, so a failure repeats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/kernels.h"
#include "worker_runtime/ops/max_pool/max_pool.h"

namespace muster::testing {

/// Values in [-1, 1) of a 64-bit linear congruential generator.
inline std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  std::uint64_t state = seed * 2862933555777941757ULL + 3037000493ULL;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<double>(state >> 40) * 0x1p-23 - 1.0);
  }
  return values;
}

inline std::vector<std::int32_t> random_integers(std::size_t count, std::int32_t below, std::uint64_t seed) {
  std::vector<std::int32_t> values(count);
  const std::vector<float> random = random_values(count, seed);
  std::transform(random.begin(), random.end(), values.begin(), [below](float value) {
    return std::min(below - 1, static_cast<std::int32_t>((value + 1.0F) / 2.0F * static_cast<float>(below)));
  });
  return values;
}

/// Largest difference, relative to the largest magnitude expected (1 where all of that is 0): the measure of
/// all comparisons.
inline double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (actual.size() != expected.size()) return 1e30;
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    const double d = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!(d <= difference)) difference = std::isnan(d) ? 1e30 : d;
  }
  return difference / (largest > 0 ? largest : 1.0);
}

inline std::vector<ConvShape> conv_cases() {
  return {
      {.batch = 4, .in_channels = 1, .height = 28, .width = 28, .out_channels = 6, .kernel = 5},
      {.batch = 4, .in_channels = 6, .height = 12, .width = 12, .out_channels = 16, .kernel = 5},
      {.batch = 1, .in_channels = 1, .height = 5, .width = 5, .out_channels = 1, .kernel = 5},
      {.batch = 64, .in_channels = 1, .height = 28, .width = 28, .out_channels = 6, .kernel = 5},
      {.batch = 3,
       .in_channels = 2,
       .height = 9,
       .width = 7,
       .out_channels = 5,
       .kernel = 5,
       .stride = 2,
       .padding = 2},
      {.batch = 2,
       .in_channels = 3,
       .height = 8,
       .width = 10,
       .out_channels = 4,
       .kernel = 3,
       .stride = 1,
       .padding = 1},
      {.batch = 2,
       .in_channels = 3,
       .height = 11,
       .width = 6,
       .out_channels = 4,
       .kernel = 3,
       .stride = 2,
       .padding = 1},
      {.batch = 2, .in_channels = 4, .height = 6, .width = 6, .out_channels = 8, .kernel = 1},
      {.batch = 2, .in_channels = 4, .height = 7, .width = 7, .out_channels = 8, .kernel = 1, .stride = 2},
      {.batch = 2,
       .in_channels = 3,
       .height = 23,
       .width = 23,
       .out_channels = 4,
       .kernel = 7,
       .stride = 2,
       .padding = 3},
      {.batch = 2, .in_channels = 2, .height = 6, .width = 6, .out_channels = 3, .kernel = 2, .stride = 3},
      {.batch = 2, .in_channels = 2, .height = 6, .width = 5, .out_channels = 3, .kernel = 4, .padding = 3},
      {.batch = 1, .in_channels = 1, .height = 1, .width = 1, .out_channels = 1, .kernel = 3, .padding = 1},
      {.batch = 2, .in_channels = 6, .height = 7, .width = 6, .out_channels = 9, .kernel = 3, .groups = 3},
      {.batch = 2,
       .in_channels = 4,
       .height = 9,
       .width = 9,
       .out_channels = 8,
       .kernel = 5,
       .padding = 2,
       .groups = 4},
  };
}

/// relu and pooling of `planes` images by windows that do not overlap.
inline nn::MaxPoolSizes pool_sizes(int planes, int height, int width, int window) {
  return {planes, height, width, height / window, width / window, window, window, 0, 1, true};
}

inline std::vector<nn::MaxPoolSizes> pool_cases() {
  return {pool_sizes(24, 24, 24, 2), pool_sizes(64, 8, 8, 2),  pool_sizes(1, 2, 2, 2),
          pool_sizes(15, 7, 9, 2),   pool_sizes(6, 10, 11, 3), pool_sizes(4, 5, 5, 1),
          pool_sizes(2, 15, 15, 15), pool_sizes(2, 3, 4, 4)};
}

inline std::vector<LinearShape> linear_cases() {
  return {{4, 256, 120}, {4, 120, 84}, {4, 84, 10},  {1, 1, 1},     {1, 33, 5},   {7, 31, 3},  {8, 64, 64},
          {9, 100, 17},  {64, 84, 10}, {63, 5, 129}, {33, 784, 51}, {65, 40, 30}, {130, 17, 9}};
}

inline std::string describe(const ConvShape& s) {
  return "batch " + std::to_string(s.batch) + ", " + std::to_string(s.in_channels) + "x" +
         std::to_string(s.height) + "x" + std::to_string(s.width) + " -> " + std::to_string(s.out_channels) +
         ", kernel " + std::to_string(s.kernel) + ", stride " + std::to_string(s.stride) + ", padding " +
         std::to_string(s.padding) + ", groups " + std::to_string(s.groups);
}

inline std::string describe(const nn::MaxPoolSizes& s) {
  return std::to_string(s.planes) + " planes of " + std::to_string(s.height) + "x" + std::to_string(s.width) +
         ", window " + std::to_string(s.kernel);
}

inline std::string describe(const LinearShape& s) {
  return "batch " + std::to_string(s.batch) + ", " + std::to_string(s.in_features) + " -> " +
         std::to_string(s.out_features);
}

}  // namespace muster::testing
