// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/dropout/dropout.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

struct AdvanceBody {
  RandomState* random;
  __device__ void operator()(std::int64_t /*only*/) const { nn::advance(*random); }
};

}  // namespace

int dropout(const DropoutArgs& args, void* stream) {
  return for_each_lane(args.count, stream, DropoutBody{args}, {args.from, args.to});  // as of floats: by four
}

int advance(RandomState* random, void* stream) {
  return for_each_element(1, stream, AdvanceBody{random});
}

}  // namespace muster::nn::cuda
