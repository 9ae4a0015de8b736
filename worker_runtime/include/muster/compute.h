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

/// PyTorch's, with its defaults. All but the first are of GPUs: the CPU's kernels are exact float32 and
/// deterministic.
struct ComputeOptions {
  /// torch.cuda.set_per_process_memory_fraction: what the arenas may take of the device's memory, on the CPU
  /// of this machine's; above 0, at most 1. Not counted: the libraries' own memory.
  double memory_fraction = 1;
  /// torch.use_deterministic_algorithms: no plan of cuDNN that may give other bits in another run.
  bool deterministic = false;
  /// torch.backends.cudnn.benchmark: of cuDNN's first plans the fastest is found out, once for each GPU and
  /// shape: the choice is kept in $XDG_CACHE_HOME/muster (or ~/.cache/muster).
  bool benchmark = false;
  bool matmul_tf32 = false;  ///< torch.backends.cuda.matmul.allow_tf32: linear layers
  bool conv_tf32 = true;     ///< torch.backends.cudnn.allow_tf32: convolutions
};

/// `index` selects the GPU. kUnsupported: built without CUDA; kNotFound: no driver or no such GPU;
/// kInvalidArgument: an option out of range.
[[nodiscard]] Result<Compute> make_compute(DeviceType type, int index = 0,
                                           const ComputeOptions& options = {});

/// GPUs that make_compute can use; 0 without CUDA. Creates no context.
[[nodiscard]] int gpu_count();

/// "cpu (avx512)", "cuda (NVIDIA H100 80GB HBM3)".
[[nodiscard]] std::string describe(const Compute& compute);

/// torch.cuda.memory_allocated: bytes of arenas, optimizer state and the like; not the libraries' own memory.
[[nodiscard]] std::size_t memory_allocated(const Compute& compute);

/// The stream the work goes to (cudaStream_t), for InitOptions::cuda_stream; nullptr on the CPU.
[[nodiscard]] void* stream_of(const Compute& compute);

}  // namespace muster
