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

int dropout(const DropoutBody& body, void* stream) {
  return for_each_lane(body.count, stream, body, {body.from, body.to});  // as of floats: by four
}

int advance(RandomState* random, void* stream) {
  return for_each_element(1, stream, AdvanceBody{random});
}

}  // namespace muster::nn::cuda
