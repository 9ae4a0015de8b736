// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"

namespace muster::nn::cuda {
namespace {

/// Values i to i + N - 1 of x, of one channel of one image; x has less than 2^31.
struct Gather {
  GatherArgs a;
  template <int N>
  __device__ void at(std::int64_t i) const {
    const auto n =
        static_cast<int>(static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(a.image_elements));
    const int e = static_cast<int>(i - std::int64_t{n} * a.image_elements);
    const int channel = e / (a.image_elements / a.channels);
    float mean = a.mean[0], stddev = a.stddev[0];
    MUSTER_UNROLL  // a GPU copies an array that it indexes with what it does not know
        for (int c = 1; c < GatherArgs::kMaxChannels; ++c) if (c == channel) {
      mean = a.mean[c];
      stddev = a.stddev[c];
    }
    const std::int64_t image = a.indices == nullptr ? n : a.indices[n];
    using Bytes = Stored<N, std::uint8_t>;
    const Bytes bytes = *reinterpret_cast<const Bytes*>(a.images + image * a.image_elements + e);
    Lanes<N> values;
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) values.v[l] = (static_cast<float>(bytes.v[l]) / 255.0F - mean) / stddev;
    store(a.x + i, values);
    if (e == 0 && a.indices != nullptr) a.out_labels[n] = a.labels[image];
  }
};

}  // namespace

int gather_normalize(const GatherArgs& args, void* stream) {
  return for_each_lane(std::int64_t{args.batch} * args.image_elements, stream, Gather{args},
                       {args.images, args.x}, args.image_elements / args.channels);
}

}  // namespace muster::nn::cuda
