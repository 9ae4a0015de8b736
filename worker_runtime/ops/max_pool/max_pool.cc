// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/max_pool/max_pool.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include <muster/nn.h>

#include "worker_runtime/kernels/kernels.h"
#include "worker_runtime/ops/pool2d_shape.h"

namespace muster::nn {
namespace {

// The winner's place in its window is kept in a byte, of which 255 means none.
constexpr int kLargestKernel = 15;

Result<Shape> pooled(std::span<const Shape> inputs, const Pool2dOptions& o) {
  if (o.kernel > kLargestKernel)
    return fail(ErrorCode::kInvalidArgument, "MaxPool2d: a kernel of " + std::to_string(o.kernel) +
                                                 ", 1 to " + std::to_string(kLargestKernel) +
                                                 " are supported");
  return pool2d_shape("MaxPool2d", inputs, o);
}

/// Bytes: one for each output.
std::size_t winners(int batch, const Shape& output) {
  return std::accumulate(output.begin(), output.end(), static_cast<std::size_t>(batch), std::multiplies<>());
}

/// The first of equals wins; a NaN wins, as in PyTorch.
class MaxPool2d final : public Operation {
 public:
  explicit MaxPool2d(const Pool2dOptions& options) : options_(with_stride(options)) {}
  [[nodiscard]] const Pool2dOptions& options() const { return options_; }

  std::string_view type() const override { return "MaxPool2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    MUSTER_TRY(output_, pooled(inputs, options_));
    return output_;
  }
  std::size_t saved_bytes(int batch) const override { return winners(batch, output_); }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    const Pool2dSizes s = pool2d_sizes(f, options_);
    const float* x = f.x[0].f32();
    float* y = f.y.f32();
#ifdef MUSTER_HAS_CUDA
    if (f.device == Device::kCuda)
      return f.report_cuda(cuda::max_pool_forward(s, x, y, f.saved, f.stream), "max_pool2d");
#endif
    std::uint8_t* winner = f.saved;
    for (int plane = 0; plane < s.planes; ++plane, x += s.height * s.width)
      for (int i = 0; i < s.out_height; ++i)
        for (int j = 0; j < s.out_width; ++j) {
          const int row0 = i * s.stride - s.padding, column0 = j * s.stride - s.padding;
          float best = -std::numeric_limits<float>::infinity();
          int place = -1;
          for (int p = std::max(0, -row0); p < std::min(s.kernel, s.height - row0); ++p)
            for (int q = std::max(0, -column0); q < std::min(s.kernel, s.width - column0); ++q) {
              const float value = x[(row0 + p) * s.width + column0 + q];
              if (place < 0 || value > best || std::isnan(value)) {
                best = value;
                place = p * s.kernel + q;
              }
            }
          *y++ = best;
          *winner++ = static_cast<std::uint8_t>(place);
        }
  }
  void backward(const Frame& f) const override {
    if (!f.dx[0]) return;
    const Pool2dSizes s = pool2d_sizes(f, options_);
    const float* dy = f.dy.f32();
    float* dx = f.dx[0].f32();
#ifdef MUSTER_HAS_CUDA
    if (f.device == Device::kCuda)
      return f.report_cuda(cuda::max_pool_backward(s, dy, f.saved, dx, f.stream), "max_pool2d backward");
#endif
    const std::uint8_t* winner = f.saved;
    std::fill_n(dx, f.dx[0].count(), 0.0F);
    for (int plane = 0; plane < s.planes; ++plane, dx += s.height * s.width)
      for (int i = 0; i < s.out_height; ++i)
        for (int j = 0; j < s.out_width; ++j, ++winner)
          dx[(i * s.stride - s.padding + *winner / s.kernel) * s.width + j * s.stride - s.padding +
             *winner % s.kernel] += *dy++;
  }

 private:
  Pool2dOptions options_;
  Shape output_;
};

/// max_pool2d(relu(x)), which equals relu(max_pool2d(x)): one kernel.
class ReluMaxPool2d final : public Operation {
 public:
  explicit ReluMaxPool2d(int window) : window_(window) {}

  std::string_view type() const override { return "ReLU+MaxPool2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    MUSTER_TRY(output_, pooled(inputs, {.kernel = window_, .stride = window_}));
    return output_;
  }
  std::size_t saved_bytes(int batch) const override { return winners(batch, output_); }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    f.kernels->relu_max_pool_forward(shape_of(f), f.x[0].f32(), f.y.f32(), f.saved);
  }
  void backward(const Frame& f) const override {
    if (f.dx[0]) f.kernels->relu_max_pool_backward(shape_of(f), f.dy.f32(), f.saved, f.dx[0].f32());
  }

 private:
  kernels::PoolShape shape_of(const Frame& f) const {
    const Tensor& x = f.x[0];
    return {x.batch(), x.channels(), x.height(), x.width(), window_};
  }

  int window_;
  Shape output_;
};

}  // namespace

Value max_pool2d(Value x, const Pool2dOptions& options) {
  return apply("", std::make_unique<MaxPool2d>(options), {x});
}

std::unique_ptr<Operation> max_pool_with_relu(const Operation& operation) {
  const auto* const pool = dynamic_cast<const MaxPool2d*>(&operation);
  if (pool == nullptr || pool->options().stride != pool->options().kernel || pool->options().padding != 0)
    return nullptr;
  return std::make_unique<ReluMaxPool2d>(pool->options().kernel);
}

}  // namespace muster::nn
