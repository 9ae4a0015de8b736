// SPDX-License-Identifier: Apache-2.0
// A thread per element; a step's sums of squares in a fixed order.
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/optim/update.h"

namespace muster::optim::cuda {
namespace {

using nn::Lanes;
using nn::load;
using nn::store;

constexpr dim3 kOne{1, 1, 1};

__global__ void squares_kernel(const float* grads, std::int64_t count, double* sums) {
  after_previous();
  double sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    sum += static_cast<double>(grads[i]) * grads[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void begin_kernel(BeginOptions options, const double* sums, int blocks, StepState* state) {
  after_previous();
  const double mine = static_cast<int>(threadIdx.x) < blocks ? sums[threadIdx.x] : 0;
  const double squares = sums == nullptr ? 0 : block_sum(mine);
  if (threadIdx.x == 0) begin_step(options, squares, *state);
}

__global__ void send_kernel(StepState* state, float lr, float momentum, float grad_scale) {
  after_previous();
  state->lr = lr;
  state->momentum = momentum;
  state->grad_scale = state->factor = grad_scale;
}

/// New parameters from i on, and their copies.
template <int N>
__device__ __forceinline__ void store_params(float* params, const HalfCopy& half, std::int64_t i,
                                             const Lanes<N>& values) {
  store(params + i, values);
  if (half.to != nullptr) store(half.to, half.dtype, i, values);
}

struct SgdBody {
  SgdOptions options;
  const StepState* state;
  float* params;
  const float* grads;
  float* velocity;
  HalfCopy half;
  template <int N>
  __device__ void at(std::int64_t i) const {
    if (state->found_inf != 0) return;
    Lanes<N> param = load<N>(params + i), moved = load<N>(velocity + i);
    const Lanes<N> grad = load<N>(grads + i);
    for (int l = 0; l < N; ++l) sgd_element(options, *state, param.v[l], grad.v[l], moved.v[l]);
    store_params(params, half, i, param);
    store(velocity + i, moved);
  }
};

struct AdamWBody {
  AdamWFactors factors;
  float* params;
  const float* grads;
  float *exp_avg, *exp_avg_sq;
  HalfCopy half;
  template <int N>
  __device__ void at(std::int64_t i) const {
    Lanes<N> param = load<N>(params + i), mean = load<N>(exp_avg + i), square = load<N>(exp_avg_sq + i);
    const Lanes<N> grad = load<N>(grads + i);
    for (int l = 0; l < N; ++l) adamw_element(factors, param.v[l], grad.v[l], mean.v[l], square.v[l]);
    store_params(params, half, i, param);
    store(exp_avg + i, mean);
    store(exp_avg_sq + i, square);
  }
};

/// The factors once per block: they need powers in double.
template <int N>
__global__ void adamw_kernel(AdamWOptions options, const StepState* state, std::int64_t count,
                             AdamWBody body) {
  __shared__ AdamWFactors factors;
  after_previous();
  if (state->found_inf != 0) return;
  if (threadIdx.x == 0) factors = adamw_factors(options, *state);
  __syncthreads();
  body.factors = factors;
  each_lane<N>(count, body);
}

}  // namespace

int send_state(StepState* state, float lr, float momentum, float grad_scale, void* stream) {
  return launch<send_kernel>(kOne, 1, stream, state, lr, momentum, grad_scale);
}

int begin(const BeginOptions& options, const float* grads, std::size_t count, double* sums, StepState* state,
          void* stream) {
  const auto elements = static_cast<std::int64_t>(count);
  const int blocks =
      sums == nullptr ? 0 : static_cast<int>(std::min<std::int64_t>(kSums, (elements + 4095) / 4096));
  const int error =
      launch<squares_kernel>(dim3{static_cast<unsigned>(blocks), 1, 1}, kSums, stream, grads, elements, sums);
  if (error != cudaSuccess) return error;
  return launch<begin_kernel>(kOne, kSums, stream, options, sums, blocks, state);
}

int sgd(const SgdOptions& options, const StepState* state, float* params, const float* grads, float* velocity,
        std::size_t count, void* stream, const HalfCopy& half) {
  return for_each_lane(static_cast<std::int64_t>(count), stream,
                       SgdBody{options, state, params, grads, velocity, half},
                       {params, grads, velocity, half.to});
}

int adamw(const AdamWOptions& options, const StepState* state, float* params, const float* grads,
          float* exp_avg, float* exp_avg_sq, std::size_t count, void* stream, const HalfCopy& half) {
  const auto elements = static_cast<std::int64_t>(count);
  // A block has 16 elements a thread, so that its powers in double are a small part of its work.
  const dim3 blocks{static_cast<unsigned>((elements + 4095) / 4096), 1, 1};
  const AdamWBody body{{}, params, grads, exp_avg, exp_avg_sq, half};
  if (are_aligned({params, grads, exp_avg, exp_avg_sq, half.to}))
    return launch<adamw_kernel<4>>(blocks, 256, stream, options, state, elements, body);
  return launch<adamw_kernel<1>>(blocks, 256, stream, options, state, elements, body);
}

}  // namespace muster::optim::cuda
