// SPDX-License-Identifier: Apache-2.0
// The results of CUDA runtime calls as Results: "cudaMalloc 4096 bytes (GPU 0): out of memory
// (cudaErrorMemoryAllocation); ...". The runtime is linked statically and finds the driver itself, so a
// program starts without one and every call then says so. Thread-safe.
#pragma once

#include <string_view>

#include <cuda_runtime_api.h>

#include <muster/result.h>

namespace muster::cuda {

/// kNotFound: no driver or no GPU; kExhausted: out of memory; kInvalidArgument; kFailed otherwise, with what
/// to try.
[[nodiscard]] Error error_of(cudaError_t result, std::string_view call, int device);

/// Success, or error_of; the error is then no longer the thread's last one.
[[nodiscard]] Result<void> check(cudaError_t result, std::string_view call, int device);

/// Makes `device` the calling thread's. Its context is created by the first call that needs it. Cheap where
/// it is that already (cudaGetDevice reads the thread's state), so that launches can call it each time.
[[nodiscard]] Result<void> select(int device);

/// GPUs the driver shows; kNotFound without driver or GPU, with what to do about it.
[[nodiscard]] Result<int> device_count();

}  // namespace muster::cuda
