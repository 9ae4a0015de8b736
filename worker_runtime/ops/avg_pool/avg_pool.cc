// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <muster/nn.h>

#include "worker_runtime/kernels/kernels.h"
#include "worker_runtime/ops/lanes.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {

#ifdef MUSTER_HAS_CUDA
namespace cuda {  // avg_pool.cu
int global_avg_pool_forward(const float* x, float* y, int planes, int pixels, void* stream);
int global_avg_pool_backward(const float* dy, float* dx, int planes, int pixels, void* stream);
}  // namespace cuda
#endif

namespace {

class GlobalAvgPool2d final : public Operation {
 public:
  std::string_view type() const override { return "AdaptiveAvgPool2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1 || inputs[0].size() != 3)
      return fail(ErrorCode::kInvalidArgument,
                  "AdaptiveAvgPool2d expects one input (channels, height, width), it has " + to_text(inputs));
    return Shape{inputs[0][0], 1, 1};
  }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    const int planes = f.x[0].batch() * f.x[0].channels(), pixels = f.x[0].height() * f.x[0].width();
    const float* x = f.x[0].f32();
    float* y = f.y.f32();
#ifdef MUSTER_HAS_CUDA
    if (f.device == Device::kCuda)
      return f.report_cuda(cuda::global_avg_pool_forward(x, y, planes, pixels, f.stream), "avg_pool2d");
#endif
    for (int plane = 0; plane < planes; ++plane, x += pixels)
      y[plane] = sum_of(static_cast<std::size_t>(pixels), [x](std::size_t i) { return x[i]; }) /
                 static_cast<float>(pixels);
  }
  void backward(const Frame& f) const override {
    if (!f.dx[0]) return;
    const int planes = f.x[0].batch() * f.x[0].channels(), pixels = f.x[0].height() * f.x[0].width();
    const float* dy = f.dy.f32();
    float* dx = f.dx[0].f32();
#ifdef MUSTER_HAS_CUDA
    if (f.device == Device::kCuda)
      return f.report_cuda(cuda::global_avg_pool_backward(dy, dx, planes, pixels, f.stream),
                           "avg_pool2d backward");
#endif
    for (int plane = 0; plane < planes; ++plane, dx += pixels)
      std::fill_n(dx, pixels, dy[plane] / static_cast<float>(pixels));
  }
};

}  // namespace

Value global_avg_pool2d(Value x) {
  return apply("", std::make_unique<GlobalAvgPool2d>(), {x});
}

}  // namespace muster::nn
