// SPDX-License-Identifier: Apache-2.0
// A counter that work on a stream counts up and the host reads without a call into the driver.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace muster::cuda {

/// Adds 1 to `count` (the GPU's memory) and writes it to `word` (mapped pinned memory), which the host reads;
/// system-wide ordered after the work before it.
[[nodiscard]] cudaError_t launch_increment(std::uint32_t* count, std::uint32_t* word, cudaStream_t stream);
/// Brings its kernel onto the current GPU, as the first launch would: the driver loads kernels late, and a
/// load may wait for the GPU, which a stream capture does not allow.
[[nodiscard]] cudaError_t load_increment();

}  // namespace muster::cuda
