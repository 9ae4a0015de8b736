// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <muster/nn.h>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/lanes.h"
#include "worker_runtime/ops/pool2d_shape.h"

namespace muster::nn {

#ifdef MUSTER_HAS_CUDA
namespace cuda {  // avg_pool.cu
int global_avg_pool_forward(const float* x, float* y, int planes, int pixels, void* stream);
int global_avg_pool_backward(const float* dy, float* dx, int planes, int pixels, void* stream);
int avg_pool_forward(const Pool2dSizes& sizes, const float* x, float* y, void* stream);
int avg_pool_backward(const Pool2dSizes& sizes, const float* dy, float* dx, void* stream);
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
    if (f.stream != nullptr)
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
    if (f.stream != nullptr)
      return f.report_cuda(cuda::global_avg_pool_backward(dy, dx, planes, pixels, f.stream),
                           "avg_pool2d backward");
#endif
    for (int plane = 0; plane < planes; ++plane, dx += pixels)
      std::fill_n(dx, pixels, dy[plane] / static_cast<float>(pixels));
  }
};

class AvgPool2d final : public Operation {
 public:
  explicit AvgPool2d(const Pool2dOptions& options) : options_(with_stride(options)) {}

  std::string_view type() const override { return "AvgPool2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    return pool2d_shape("AvgPool2d", inputs, options_);
  }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    const Pool2dSizes s = pool2d_sizes(f, options_);
    const float* x = f.x[0].f32();
    float* y = f.y.f32();
#ifdef MUSTER_HAS_CUDA
    if (f.stream != nullptr) return f.report_cuda(cuda::avg_pool_forward(s, x, y, f.stream), "avg_pool2d");
#endif
    std::fill_n(y, f.y.count(), 0.0F);
    for_each_pair(s, [=](std::int64_t i, std::int64_t o) { y[o] += x[i]; });
    const auto area = static_cast<float>(s.kernel * s.kernel);
    for (std::int64_t o = 0; o < f.y.count(); ++o) y[o] /= area;
  }
  void backward(const Frame& f) const override {
    if (!f.dx[0]) return;
    const Pool2dSizes s = pool2d_sizes(f, options_);
    const float* dy = f.dy.f32();
    float* dx = f.dx[0].f32();
#ifdef MUSTER_HAS_CUDA
    if (f.stream != nullptr)
      return f.report_cuda(cuda::avg_pool_backward(s, dy, dx, f.stream), "avg_pool2d backward");
#endif
    const auto area = static_cast<float>(s.kernel * s.kernel);
    std::fill_n(dx, f.dx[0].count(), 0.0F);
    for_each_pair(s, [=](std::int64_t i, std::int64_t o) { dx[i] += dy[o] / area; });
  }

 private:
  /// Calls each(input, output) for every input of every window, window by window.
  template <class Each>
  static void for_each_pair(const Pool2dSizes& s, Each each) {
    std::int64_t output = 0;
    for (int plane = 0; plane < s.planes; ++plane)
      for (int i = 0; i < s.out_height; ++i)
        for (int j = 0; j < s.out_width; ++j, ++output) {
          const int row0 = i * s.stride - s.padding, column0 = j * s.stride - s.padding;
          for (int row = std::max(0, row0); row < std::min(s.height, row0 + s.kernel); ++row)
            for (int column = std::max(0, column0); column < std::min(s.width, column0 + s.kernel); ++column)
              each((std::int64_t{plane} * s.height + row) * s.width + column, output);
        }
  }

  Pool2dOptions options_;
};

}  // namespace

Value avg_pool2d(Value x, const Pool2dOptions& options) {
  return apply("", std::make_unique<AvgPool2d>(options), {x});
}

Value global_avg_pool2d(Value x) {
  return apply("", std::make_unique<GlobalAvgPool2d>(), {x});
}

}  // namespace muster::nn
