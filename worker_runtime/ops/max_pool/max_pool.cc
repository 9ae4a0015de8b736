// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/max_pool/max_pool.h"

#include <algorithm>
#include <array>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/pool2d_shape.h"

namespace muster::nn {

namespace cuda {  // max_pool.cu
int max_pool_forward(const MaxPoolSizes& sizes, DType dtype, const void* x, void* y, std::uint8_t* winner,
                     void* stream);
int max_pool_backward(const MaxPoolSizes& sizes, DType dtype, const void* dy, const std::uint8_t* winner,
                      void* dx, void* stream);
}  // namespace cuda

namespace {

// The winner's place in its window is kept in a byte, of which 255 means none.
constexpr int kLargestKernel = 15;

class MaxPool2d final : public AnyFormatOperation {
 public:
  explicit MaxPool2d(const Pool2dOptions& options, bool relu = false)
      : options_(with_stride(options)), relu_(relu) {}
  [[nodiscard]] const Pool2dOptions& options() const { return options_; }

  std::string_view type() const override { return relu_ ? "ReLU+MaxPool2d" : "MaxPool2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (options_.kernel > kLargestKernel)
      return invalid("MaxPool2d: a kernel of {}, 1 to {} are supported", options_.kernel, kLargestKernel);
    MUSTER_TRY(output_, pool2d_shape("MaxPool2d", inputs, options_));
    return output_;
  }
  std::size_t saved_bytes(int batch) const override {
    return static_cast<std::size_t>(elements_of(output_, batch));
  }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    f.report_cuda(max_pool_forward(sizes_of(f), f.x[0].data, f.y.data, f.saved, f.stream, f.y.dtype),
                  "max_pool2d");
  }
  void backward(const Frame& f) const override {
    if (f.dx[0])
      f.report_cuda(max_pool_backward(sizes_of(f), f.dy.data, f.saved, f.dx[0].data, f.stream, f.dy.dtype),
                    "max_pool2d backward");
  }

 private:
  MaxPoolSizes sizes_of(const Frame& f) const {
    const Tensor &x = f.x[0], &y = f.y;
    const Pool2dOptions& o = options_;
    const int channels = channels_side_by_side(f), planes = x.batch() * x.channels() / channels;
    return {planes,   x.height(), x.width(), y.height(), y.width(),
            o.kernel, o.stride,   o.padding, channels,   relu_};
  }

  Pool2dOptions options_;
  bool relu_;
  Shape output_;
};

/// As MaxPoolForward, for some outputs of a row at a time, a place of the window after another: loops
/// that the compiler makes vectors of. kStride: the stride, or 0 for any.
template <int kStride>
void max_pool_rows(const MaxPoolSizes& s, const float* x, float* y, std::uint8_t* winner) {
  constexpr int kAtOnce = 64;
  std::array<float, kAtOnce> best;
  std::array<int, kAtOnce> places;  // as wide as the values
  const int stride = kStride > 0 ? kStride : s.stride;
  for (std::int64_t row = 0; row < std::int64_t{s.planes} * s.out_height; ++row)
    for (int first = 0; first < s.out_width; first += kAtOnce) {
      const int row0 = static_cast<int>(row % s.out_height) * stride - s.padding, p0 = std::max(0, -row0);
      const int count = std::min(kAtOnce, s.out_width - first), column0 = first * stride - s.padding;
      const float* const image = x + row / s.out_height * s.height * s.width;
      for (int j = 0; j < count; ++j) {
        best[static_cast<std::size_t>(j)] = s.relu ? 0.0F : -INFINITY;
        places[static_cast<std::size_t>(j)] =
            s.relu ? kNoWinner : p0 * s.kernel + std::max(0, -column0 - j * stride);
      }
      for (int p = p0; p < s.kernel && p < s.height - row0; ++p)
        for (int q = 0; q < s.kernel; ++q) {
          const int begin = std::max(0, (stride - 1 - column0 - q) / stride);
          const int last = s.width - 1 - column0 - q;  // what the first window's column has to its right
          const int end = last < 0 ? 0 : std::min(count, last / stride + 1);
          const float* const line = image + (row0 + p) * s.width + column0 + q;
          const int place = p * s.kernel + q;
          for (int j = begin; j < end; ++j) {
            const auto at = static_cast<std::size_t>(j);
            const float value = line[j * stride];
            const bool wins = value > best[at] || std::isnan(value);
            best[at] = wins ? value : best[at];
            places[at] = wins ? place : places[at];
          }
        }
      for (int j = 0; j < count; ++j, ++y, ++winner) {
        *y = best[static_cast<std::size_t>(j)];
        *winner = static_cast<std::uint8_t>(places[static_cast<std::size_t>(j)]);
      }
    }
}

}  // namespace

Value max_pool2d(Value x, const Pool2dOptions& options) {
  return apply("", std::make_unique<MaxPool2d>(options), {x});
}

std::unique_ptr<Operation> max_pool_with_relu(const Operation& operation) {
  const auto* const pool = dynamic_cast<const MaxPool2d*>(&operation);
  if (pool == nullptr || pool->options().stride != pool->options().kernel || pool->options().padding != 0)
    return nullptr;
  return std::make_unique<MaxPool2d>(pool->options(), true);
}

int max_pool_forward(const MaxPoolSizes& s, const void* from, void* to, std::uint8_t* winner, void* stream,
                     DType dtype) {
  if constexpr (kHasCuda)
    if (stream != nullptr) return cuda::max_pool_forward(s, dtype, from, to, winner, stream);
  const auto* const x = as<float>(from);
  auto* const y = as<float>(to);
  if (relu_max_pool_rows(s, x, y, winner)) return 0;
  s.stride == 2 ? max_pool_rows<2>(s, x, y, winner) : max_pool_rows<0>(s, x, y, winner);
  return 0;
}

int max_pool_backward(const MaxPoolSizes& s, const void* from, const std::uint8_t* winner, void* to,
                      void* stream, DType dtype) {
  if constexpr (kHasCuda)
    if (stream != nullptr) return cuda::max_pool_backward(s, dtype, from, winner, to, stream);
  const auto* dy = as<float>(from);
  auto* dx = as<float>(to);
  if (relu_max_unpool_rows(s, dy, winner, dx)) return 0;
  std::fill_n(dx, std::int64_t{s.planes} * s.height * s.width, 0.0F);
  for (int plane = 0; plane < s.planes; ++plane, dx += s.height * s.width)
    for (int i = 0; i < s.out_height; ++i)
      for (int j = 0; j < s.out_width; ++j, ++winner, ++dy)
        if (*winner != kNoWinner)
          dx[(i * s.stride - s.padding + *winner / s.kernel) * s.width + j * s.stride - s.padding +
             *winner % s.kernel] += *dy;
  return 0;
}

}  // namespace muster::nn
