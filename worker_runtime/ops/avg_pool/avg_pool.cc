// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/avg_pool/avg_pool.h"

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/pool2d_shape.h"

namespace muster::nn {
namespace {

class AvgPool2d : public AnyFormatOperation {
 public:
  explicit AvgPool2d(const Pool2dOptions& options) : options_(with_stride(options)) {}

  std::string_view type() const override { return "AvgPool2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    return pool2d_shape("AvgPool2d", inputs, options_);
  }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    const AvgPoolSizes s = sizes(f);
    if constexpr (kHasCuda)
      if (f.stream != nullptr)
        return f.report_cuda(cuda::avg_pool_forward(s, f.y.dtype, f.x[0].data, f.y.data, f.stream),
                             "avg_pool2d");
    const AvgPoolForward<float> body{s, f.x[0].f32(), f.y.f32()};
    for (std::int64_t o = 0; o < f.y.count(); ++o) body.at<1>(o);
  }
  void backward(const Frame& f) const override {
    if (!f.dx[0]) return;
    const AvgPoolSizes s = sizes(f);
    if constexpr (kHasCuda)
      if (f.stream != nullptr)
        return f.report_cuda(cuda::avg_pool_backward(s, f.dy.dtype, f.dy.data, f.dx[0].data, f.stream),
                             "avg_pool2d backward");
    const AvgPoolBackward<float> body{s, f.dy.f32(), f.dx[0].f32()};
    for (std::int64_t i = 0; i < f.dx[0].count(); ++i) body.at<1>(i);
  }

 private:
  AvgPoolSizes sizes(const Frame& f) const {
    const auto windows = [this](int size, int outputs) {
      return AvgWindows{size, outputs, options_.kernel, options_.stride, options_.padding};
    };
    const Tensor& x = f.x[0];
    const int channels = channels_side_by_side(f);
    return {x.batch() * x.channels() / channels, windows(x.height(), f.y.height()),
            windows(x.width(), f.y.width()), channels};
  }

  Pool2dOptions options_;
};

class AdaptiveAvgPool2d final : public AvgPool2d {
 public:
  AdaptiveAvgPool2d(int height, int width) : AvgPool2d({.kernel = 0}), height_(height), width_(width) {}

  std::string_view type() const override { return "AdaptiveAvgPool2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1 || inputs[0].size() != 3 || height_ < 1 || width_ < 1)
      return invalid("AdaptiveAvgPool2d to {}x{} expects one input (channels, height, width), it has {}",
                     height_, width_, to_text(inputs));
    return Shape{inputs[0][0], height_, width_};
  }

 private:
  int height_, width_;
};

}  // namespace

Value avg_pool2d(Value x, const Pool2dOptions& options) {
  return apply("", std::make_unique<AvgPool2d>(options), {x});
}

Value adaptive_avg_pool2d(Value x, int height, int width) {
  return apply("", std::make_unique<AdaptiveAvgPool2d>(height, width), {x});
}

}  // namespace muster::nn
