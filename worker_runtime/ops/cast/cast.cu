// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

struct CastBody {
  Cast cast;
  __device__ void operator()(std::int64_t i) const { cast_element(cast, i); }
};

}  // namespace

int cast(const Cast& cast, void* stream) {
  return for_each_element(cast.count, stream, CastBody{cast});
}

}  // namespace muster::nn::cuda
