// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {

int cast(const Cast& cast, void* stream) {
  const CastBody body{cast};
  const int row = cast.rows == 1 ? kLanes<Bf16> : 1;  // of another layout each element is read from elsewhere
  if (cast.from_dtype == DType::kFloat32 || cast.to_dtype == DType::kFloat32)
    return for_each_lane<float>(cast.count, stream, body, {cast.from, cast.to}, row);
  return for_each_lane<Bf16>(cast.count, stream, body, {cast.from, cast.to}, row);
}

}  // namespace muster::nn::cuda
