// SPDX-License-Identifier: Apache-2.0
// On the CPU: vectors, and oneDNN's sgemm, which packs its operands, once the weights outgrow the second
// level cache.
#include <limits>
#include <string>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cast/half.h"
#include "worker_runtime/ops/linear/linear.h"

namespace muster::nn {
namespace {

struct CpuLinear final : PreparedLinear {
  explicit CpuLinear(const LinearShape& of) : shape(of), sgemm(linear_sgemm_is_faster(of)) {
    if (sgemm) backend = "oneDNN";
  }

  void forward(const void* x, const void* w, const void* b, void* y, bool relu,
               void* /*workspace*/) override {
    linear_vector_forward(shape, as<float>(x), as<float>(w), as<float>(b), as<float>(y), relu);
  }
  void backward(const void* x, const void* w, const void* y, void* dy, void* dx, float* dw, float* db,
                bool relu, void* /*workspace*/) override {
    linear_vector_output_gradient(shape, as<float>(y), as<float>(dy), db, relu);
    const auto products = sgemm ? linear_sgemm_backward : linear_vector_backward;
    products(shape, as<float>(x), as<float>(w), as<float>(dy), as<float>(dx), dw);
  }

  LinearShape shape;
  bool sgemm;
};

Result<void> check_shape(const LinearShape& s) {
  const std::string text = "linear " + std::to_string(s.in_features) + "->" + std::to_string(s.out_features) +
                           " on a batch of " + std::to_string(s.batch);
  if (s.batch < 1 || s.in_features < 1 || s.out_features < 1)
    return fail(ErrorCode::kInvalidArgument, text + ": every size must be at least 1");
  constexpr std::int64_t kLimit = std::numeric_limits<int>::max();
  const std::int64_t batch = s.batch, in = s.in_features, out = s.out_features;
  if (batch * in > kLimit || batch * out > kLimit || in * out > kLimit)
    return fail(ErrorCode::kUnsupported, text + ": a tensor would exceed 2^31 elements; use a smaller batch");
  return {};
}

}  // namespace

Result<std::unique_ptr<PreparedLinear>> PreparedLinear::make([[maybe_unused]] Device& device,
                                                             const LinearShape& shape) {
  MUSTER_OK(check_shape(shape));
#ifdef MUSTER_HAS_CUDA
  if (device.stream() != nullptr) return cuda::prepare_linear(device, shape);
#endif
  return std::make_unique<CpuLinear>(shape);
}

}  // namespace muster::nn
