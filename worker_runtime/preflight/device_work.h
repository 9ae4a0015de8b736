// SPDX-License-Identifier: Apache-2.0
// Device work: what one process of muster-preflight does on its device, through the interfaces that training
// uses: memory copies, a matrix product and an all-reduce, each checked element by element and timed.
// Blocking; one thread. Failure: the device's error, or kCorrupt with what was wrong in the result.
#pragma once

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

}  // namespace muster::preflight
