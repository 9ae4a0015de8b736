// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"

namespace muster::nn::cuda {
namespace {

struct Gather {
  GatherArgs args;
  template <int N>
  __device__ void at(std::int64_t i) const {
    gather_elements<N>(args, i);
  }
};

}  // namespace

int gather_normalize(const GatherArgs& args, void* stream) {
  return for_each_lane(std::int64_t{args.batch} * args.image_elements, stream, Gather{args},
                       {args.images, args.x}, args.image_elements / args.channels);
}

}  // namespace muster::nn::cuda
