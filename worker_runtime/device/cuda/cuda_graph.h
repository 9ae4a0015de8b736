// SPDX-License-Identifier: Apache-2.0
// The StepRecorder of a CUDA stream: each slot is an instantiated graph. Made by CudaDevice. Includes no
// CUDA header.
#pragma once

#include <memory>

#include "worker_runtime/device/step_recorder.h"

namespace muster {

/// `stream`: cudaStream_t on GPU `device`. `noted`: where the kernels, whose calls return nothing, keep their
/// first error; one made while recording is the recording's and is taken from there, for the step can still
/// be called.
[[nodiscard]] std::unique_ptr<StepRecorder> make_cuda_step_recorder(int device, void* stream,
                                                                    Result<void>& noted);

}  // namespace muster
