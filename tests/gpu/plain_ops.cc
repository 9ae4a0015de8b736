// SPDX-License-Identifier: Apache-2.0
// What oneDNN computes elsewhere, as plain loops: for GPU hosts without it (MUSTER_GPU_HOST), where the CPU
// only has to say what is right.
#include <algorithm>

#include <muster/check.h>

#include "worker_runtime/ops/conv2d/conv2d.h"
#include "worker_runtime/ops/linear/linear.h"

namespace muster::nn {
namespace {

struct PlainConv final : PreparedConv2d {
  explicit PlainConv(const ConvShape& of) : s(of) {}

  /// Calls visit(weight, x, y, columns) for each weight and each row of outputs: its product with the inputs
  /// x, x + stride, ... is a part of the outputs y, y + 1, ...
  template <class Visit>
  void for_each_row(Visit visit) const {
    const int rows = s.out_height(), inputs = s.in_channels / s.groups, outputs = s.out_channels / s.groups;
    for (int n = 0; n < s.batch; ++n)
      for (int o = 0; o < s.out_channels; ++o)
        for (int c = 0; c < inputs; ++c)
          for (int p = 0; p < s.kernel; ++p)
            for (int q = 0; q < s.kernel; ++q) {
              const int first = std::max(0, (s.padding - q + s.stride - 1) / s.stride);
              const int end = std::min(s.out_width(), (s.width - 1 + s.padding - q + s.stride) / s.stride);
              for (int i = 0; i < rows; ++i) {
                const int row = i * s.stride + p - s.padding;
                if (row < 0 || row >= s.height || first >= end) continue;
                const int channel = n * s.in_channels + o / outputs * inputs + c;
                visit(((o * inputs + c) * s.kernel + p) * s.kernel + q,
                      (channel * s.height + row) * s.width + first * s.stride + q - s.padding,
                      ((n * s.out_channels + o) * rows + i) * s.out_width() + first, end - first);
              }
            }
  }

  void forward(const void* x_at, const void* w_at, const void* b_at, void* y_at,
               void* /*workspace*/) override {
    const auto *x = static_cast<const float*>(x_at), *w = static_cast<const float*>(w_at);
    const auto* b = static_cast<const float*>(b_at);
    auto* y = static_cast<float*>(y_at);
    const int pixels = s.out_height() * s.out_width();
    for (int k = 0; k < s.batch * s.out_channels; ++k)
      std::fill_n(y + k * pixels, pixels, b[k % s.out_channels]);
    for_each_row([&](int weight, int from, int to, int columns) {
      for (int j = 0; j < columns; ++j) y[to + j] += w[weight] * x[from + j * s.stride];
    });
  }

  void backward(const void* x_at, const void* w_at, const void* dy_at, void* dx_at, float* dw, float* db,
                void* /*workspace*/) override {
    const auto *x = static_cast<const float*>(x_at), *w = static_cast<const float*>(w_at);
    const auto* dy = static_cast<const float*>(dy_at);
    auto* dx = static_cast<float*>(dx_at);
    const int pixels = s.out_height() * s.out_width();
    std::fill_n(db, s.out_channels, 0.0F);
    for (int k = 0; k < s.batch * s.out_channels; ++k)
      for (int j = 0; j < pixels; ++j) db[k % s.out_channels] += dy[k * pixels + j];
    std::fill_n(dw, s.out_channels * (s.in_channels / s.groups) * s.kernel * s.kernel, 0.0F);
    if (dx != nullptr) std::fill_n(dx, s.batch * s.in_channels * s.height * s.width, 0.0F);
    for_each_row([&](int weight, int from, int to, int columns) {
      float sum = 0;
      for (int j = 0; j < columns; ++j) sum += dy[to + j] * x[from + j * s.stride];
      dw[weight] += sum;
      for (int j = 0; j < columns && dx != nullptr; ++j) dx[from + j * s.stride] += w[weight] * dy[to + j];
    });
  }

  ConvShape s;
};

}  // namespace

Result<std::unique_ptr<PreparedConv2d>> make_general_conv(const ConvShape& shape) {
  return std::make_unique<PlainConv>(shape);
}

bool linear_sgemm_is_faster(const LinearShape& /*shape*/) {
  return false;
}

void linear_sgemm_backward(const LinearShape& /*shape*/, const float* /*x*/, const float* /*w*/,
                           const float* /*dy*/, float* /*dx*/, float* /*dw*/) {
  MUSTER_CHECK(false, "this build has no oneDNN");
}

}  // namespace muster::nn
