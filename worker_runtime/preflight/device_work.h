// SPDX-License-Identifier: Apache-2.0
// Device work: what one process of muster-preflight does on its device, through the interfaces that training
// uses: memory copies, a matrix product and an all-reduce, each checked element by element and timed.
// Blocking; one thread. Failure: the device's error, or kCorrupt with what was wrong in the result.
#pragma once

#include <cstdint>
#include <vector>

#include <muster/process_group.h>
#include <muster/result.h>

#include "worker_runtime/device/device.h"

namespace muster::preflight {

/// Bytes per second, of copies within the device's memory.
[[nodiscard]] Result<double> measure_copies(Device& device);
/// Floating-point operations per second, of y = x w^T + b in float32.
[[nodiscard]] Result<double> measure_gemm(Device& device);
/// Bytes per second on the bus, 2 (n-1)/n of the buffer's for each all-reduce, as nccl-tests counts.
[[nodiscard]] Result<double> measure_all_reduce(Device& device, ProcessGroup& group);

// Exact product: a matrix product that any correct hardware computes without a rounding, and the check of
// every element of its result in O(n^2). The elements are small integers, so that each partial sum is exact
// in float32, TF32 inputs and any order of the sums included. Checked is Y r = X (W' r) + b r for a vector r
// of random integers, in 64-bit integers: a row with one wrong element always shows, one with several but
// for a chance of about 1 in 1000. Pure. Source: Freivalds, "Probabilistic machines can use less running
// time", 1977.

/// y (n, n) = x (n, n) w^T + b (n); row-major.
struct ExactProduct {
  int n = 0;
  std::vector<float> x, w, b;
};

/// n at most 8192: the sums stay below 2^24.
[[nodiscard]] ExactProduct make_exact_product(int n, std::uint64_t seed);

/// Rows of `y` that are not the product's; a NaN or a fraction is wrong too.
[[nodiscard]] int count_wrong_rows(const ExactProduct& product, const std::vector<float>& y,
                                   std::uint64_t seed);

}  // namespace muster::preflight
