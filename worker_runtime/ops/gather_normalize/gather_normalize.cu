// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"

namespace muster::nn::cuda {
namespace {

struct Gather {
  GatherArgs args;
  __device__ void operator()(std::int64_t i) const { gather_element(args, i); }
};

}  // namespace

int gather_normalize(const GatherArgs& args, void* stream) {
  return for_each_element(std::int64_t{args.batch} * args.image_elements, stream, Gather{args});
}

}  // namespace muster::nn::cuda
