// SPDX-License-Identifier: Apache-2.0
// On the CPU: hands each shape to the implementation that was measured faster for it.
#include <limits>
#include <string>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cast/half.h"
#include "worker_runtime/ops/conv2d/conv2d.h"

namespace muster::nn {
namespace {

// From one core of a Zen 4 (AVX-512), microseconds of forward + dw + dx, own against oneDNN 2.6.3:
// 6->16 5x5 on 12x12, batch 64: 620 / 1012;  3->16 3x3 on 34x34, batch 16: 664 / 1424 (its dx of few channels
// is slow); 32->32 3x3 on 18x18, batch 16: 2391 / 2178;  16->32 5x5 on 14x14, batch 16: 1987 / 1160.
bool direct_is_faster(const ConvShape& shape) {
  return direct_conv_supports(shape) && shape.in_channels < 16 && shape.groups == 1;
}

struct DirectConv final : PreparedConv2d {
  explicit DirectConv(const ConvShape& of) : shape(of) {
    workspace_bytes = direct_conv_scratch(shape) * sizeof(float);
  }
  void forward(const void* x, const void* w, const void* b, void* y, void* /*workspace*/) override {
    direct_conv_forward(shape, as<float>(x), as<float>(w), as<float>(b), as<float>(y));
  }
  void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                void* workspace) override {
    direct_conv_weight_gradient(shape, as<float>(x), as<float>(dy), dw, db);
    if (dx != nullptr)
      direct_conv_input_gradient(shape, as<float>(w), as<float>(dy), as<float>(dx), as<float>(workspace));
  }

  ConvShape shape;
};

std::string describe(const ConvShape& shape) {
  return "conv2d " + std::to_string(shape.in_channels) + "->" + std::to_string(shape.out_channels) +
         ", kernel " + std::to_string(shape.kernel) + ", stride " + std::to_string(shape.stride) +
         ", padding " + std::to_string(shape.padding) + " on a batch of " + std::to_string(shape.batch) +
         " images of " + std::to_string(shape.height) + "x" + std::to_string(shape.width);
}

/// Offsets inside a tensor are ints.
bool fits_int(std::int64_t a, std::int64_t b, std::int64_t c) {
  constexpr std::int64_t kLimit = std::numeric_limits<int>::max();
  return a * b <= kLimit && a * b * c <= kLimit;
}

Result<void> check_shape(const ConvShape& s) {
  if (s.batch < 1 || s.in_channels < 1 || s.out_channels < 1 || s.height < 1 || s.width < 1 || s.kernel < 1 ||
      s.stride < 1 || s.padding < 0)
    return fail(ErrorCode::kInvalidArgument,
                describe(s) + ": every size must be at least 1 and the padding not negative");
  if (std::int64_t{s.height} + 2 * std::int64_t{s.padding} < s.kernel ||
      std::int64_t{s.width} + 2 * std::int64_t{s.padding} < s.kernel)
    return fail(ErrorCode::kInvalidArgument, describe(s) + ": the kernel is larger than the padded image");
  if (s.groups < 1 || s.in_channels % s.groups != 0 || s.out_channels % s.groups != 0)
    return fail(ErrorCode::kInvalidArgument,
                describe(s) + ": " + std::to_string(s.groups) + " groups do not divide its channels");
  if (!fits_int(std::int64_t{s.batch} * s.in_channels, s.height, s.width) ||
      !fits_int(std::int64_t{s.batch} * s.out_channels, s.out_height(), s.out_width()) ||
      !fits_int(std::int64_t{s.in_channels} / s.groups * s.out_channels, s.kernel, s.kernel))
    return fail(ErrorCode::kUnsupported,
                describe(s) + ": a tensor would exceed 2^31 elements; use a smaller batch");
  return {};
}

}  // namespace

Result<std::unique_ptr<PreparedConv2d>> PreparedConv2d::make([[maybe_unused]] Device& device,
                                                             const ConvShape& shape) {
  MUSTER_OK(check_shape(shape));
#ifdef MUSTER_HAS_CUDA
  if (device.stream() != nullptr) return cuda::prepare_conv2d(device, shape);
#endif
  if (direct_is_faster(shape)) return std::make_unique<DirectConv>(shape);
  return make_general_conv(shape);
}

}  // namespace muster::nn
