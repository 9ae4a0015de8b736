// SPDX-License-Identifier: Apache-2.0
// launch<kernel>(): kernel<<<blocks, threads>>>. Where the GPU has programmatic dependent launches (compute
// capability 9), a kernel may start before the one in front of it has ended, which hides its launch; each
// kernel therefore begins with after_previous(), before it reads or writes anything. Source: CUDA C++
// Programming Guide, "Programmatic Dependent Launch and Synchronization".
#pragma once

#include <cuda_runtime.h>

namespace muster::cuda {

/// The kernel's first statement: lets the next kernel start, waits until the one before has ended.
__device__ __forceinline__ void after_previous() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

/// Whether the code that runs is of an architecture for which after_previous() waits.
template <auto kKernel>
bool starts_early() {
  int device = 0, major = 0;
  cudaFuncAttributes attributes{};
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9 && cudaFuncGetAttributes(&attributes, kKernel) == cudaSuccess &&
         attributes.ptxVersion >= 90;
}

/// Enqueues and returns the launch's error (cudaError_t); without blocks nothing. `stream`: cudaStream_t.
template <auto kKernel, class... Arguments>
int launch(dim3 blocks, unsigned threads, void* stream, Arguments... arguments) {
  static const bool early = starts_early<kKernel>();
  if (blocks.x == 0) return cudaSuccess;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3{threads, 1, 1};
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  const cudaError_t launched = cudaLaunchKernelEx(&config, kKernel, arguments...);
  // Taken from the runtime too, or the next call would report it.
  return launched == cudaSuccess ? launched : cudaGetLastError();
}

}  // namespace muster::cuda
