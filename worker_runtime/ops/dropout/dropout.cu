// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/dropout/dropout.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

template <bool kAligned>
struct DropoutBody {
  DropoutArgs args;
  __device__ void operator()(std::int64_t quad) const { dropout_quad<kAligned>(args, quad); }
};

struct AdvanceBody {
  RandomState* random;
  __device__ void operator()(std::int64_t /*only*/) const { nn::advance(*random); }
};

}  // namespace

int dropout(const DropoutArgs& args, void* stream) {
  const std::int64_t quads = (args.count + 3) / 4;
  if (are_aligned({args.from, args.to})) return for_each_element(quads, stream, DropoutBody<true>{args});
  return for_each_element(quads, stream, DropoutBody<false>{args});
}

int advance(RandomState* random, void* stream) {
  return for_each_element(1, stream, AdvanceBody{random});
}

}  // namespace muster::nn::cuda
