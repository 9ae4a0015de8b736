// SPDX-License-Identifier: Apache-2.0
// A thread per element; a step's sums of squares in a fixed order.
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/warp.cuh"
#include "worker_runtime/optim/update.h"

namespace muster::optim::cuda {
namespace {

using nn::cuda::block_sum;

__global__ void squares_kernel(const float* grads, std::int64_t count, double* sums) {
  double sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    sum += static_cast<double>(grads[i]) * grads[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void begin_kernel(BeginOptions options, const double* sums, StepState* state) {
  const double squares = sums == nullptr ? 0 : block_sum(sums[threadIdx.x]);
  if (threadIdx.x == 0) begin_step(options, squares, *state);
}

__global__ void send_kernel(StepState* state, float lr, float momentum, float grad_scale) {
  state->lr = lr;
  state->momentum = momentum;
  state->grad_scale = state->factor = grad_scale;
}

struct SgdBody {
  SgdOptions options;
  const StepState* state;
  float* params;
  const float* grads;
  float* velocity;
  __device__ void operator()(std::int64_t i) const {
    if (state->found_inf == 0) sgd_element(options, *state, params[i], grads[i], velocity[i]);
  }
};

/// The factors once per block: they need powers in double.
__global__ void adamw_kernel(AdamWOptions options, const StepState* state, float* params, const float* grads,
                             float* exp_avg, float* exp_avg_sq, std::int64_t count) {
  __shared__ AdamWFactors factors;
  if (state->found_inf != 0) return;
  if (threadIdx.x == 0) factors = adamw_factors(options, *state);
  __syncthreads();
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    adamw_element(factors, params[i], grads[i], exp_avg[i], exp_avg_sq[i]);
}

}  // namespace

int send_state(StepState* state, float lr, float momentum, float grad_scale, void* stream) {
  send_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(state, lr, momentum, grad_scale);
  return cudaGetLastError();
}

int begin(const BeginOptions& options, const float* grads, std::size_t count, double* sums, StepState* state,
          void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  const auto elements = static_cast<std::int64_t>(count);
  if (sums != nullptr) squares_kernel<<<kSums, kSums, 0, on>>>(grads, elements, sums);
  begin_kernel<<<1, kSums, 0, on>>>(options, sums, state);
  return cudaGetLastError();
}

int sgd(const SgdOptions& options, const StepState* state, float* params, const float* grads, float* velocity,
        std::size_t count, void* stream) {
  return nn::cuda::for_each_element(static_cast<std::int64_t>(count), stream,
                                    SgdBody{options, state, params, grads, velocity});
}

int adamw(const AdamWOptions& options, const StepState* state, float* params, const float* grads,
          float* exp_avg, float* exp_avg_sq, std::size_t count, void* stream) {
  const auto elements = static_cast<std::int64_t>(count);
  // A block has 16 elements a thread, so that its powers in double are a small part of its work.
  const auto blocks = static_cast<unsigned>((elements + 4095) / 4096);
  auto* const on = static_cast<cudaStream_t>(stream);
  adamw_kernel<<<blocks, 256, 0, on>>>(options, state, params, grads, exp_avg, exp_avg_sq, elements);
  return cudaGetLastError();
}

}  // namespace muster::optim::cuda
