// SPDX-License-Identifier: Apache-2.0
// Compute: the device a model runs on, with its memory and its stream. Opaque here: operations enqueue on it,
// a training program only makes one and hands it on. One per rank, used by one thread. Memory taken from it
// lives as long as it does.
#pragma once

#include <memory>
#include <string>

#include <muster/dtype.h>
#include <muster/result.h>

namespace muster {

class Device;
using Compute = std::shared_ptr<Device>;

/// `index` selects the GPU. kUnsupported: built without CUDA; kNotFound: no driver or no such GPU.
[[nodiscard]] Result<Compute> make_compute(DeviceType type, int index = 0);

/// GPUs that make_compute can use; 0 without CUDA. Creates no context.
[[nodiscard]] int gpu_count();

/// "cpu (avx512)", "cuda (NVIDIA H100 80GB HBM3)".
[[nodiscard]] std::string describe(const Compute& compute);

/// The stream the work goes to (cudaStream_t), for InitOptions::cuda_stream; nullptr on the CPU.
[[nodiscard]] void* stream_of(const Compute& compute);

}  // namespace muster
