// SPDX-License-Identifier: Apache-2.0
// The oracle: each function as its definition reads, plain loops and double accumulators. Slow on purpose;
// the vector and CUDA kernels are tested against it.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include <muster/check.h>

#include "tests/support/kernels.h"

namespace muster::testing {
namespace reference {

/// Calls visit(x_index, w_index, y_index) for each product that convolution sums up.
template <class Visit>
void for_each_product(const ConvShape& s, Visit visit) {
  const int rows = s.out_height(), columns = s.out_width();
  for (int n = 0; n < s.batch; ++n)
    for (int o = 0; o < s.out_channels; ++o)
      for (int i = 0; i < rows; ++i)
        for (int j = 0; j < columns; ++j)
          for (int of_group = 0; of_group < s.in_channels / s.groups; ++of_group)
            for (int p = 0; p < s.kernel; ++p)
              for (int q = 0; q < s.kernel; ++q) {
                const int row = i * s.stride + p - s.padding, column = j * s.stride + q - s.padding;
                if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
                const int c = o / (s.out_channels / s.groups) * (s.in_channels / s.groups) + of_group;
                visit(((n * s.in_channels + c) * s.height + row) * s.width + column,
                      ((o * (s.in_channels / s.groups) + of_group) * s.kernel + p) * s.kernel + q,
                      ((n * s.out_channels + o) * rows + i) * columns + j);
              }
}

inline void store(const std::vector<double>& from, float* to) {
  std::transform(from.begin(), from.end(), to, [](double value) { return static_cast<float>(value); });
}

inline std::vector<double> zeros(std::int64_t count) {
  return std::vector<double>(static_cast<std::size_t>(count), 0.0);
}

class ReferenceKernels final : public Kernels {
 public:
  ReferenceKernels() : Kernels(*make_compute(DeviceType::kCpu)) {}

  void gather_normalize(const std::uint8_t* images, const std::uint8_t* labels, const std::int32_t* indices,
                        int batch, int image_elements, float mean, float stddev, float* x,
                        std::int32_t* out_labels) override {
    for (int n = 0; n < batch; ++n) {
      const std::uint8_t* image = images + static_cast<std::int64_t>(indices[n]) * image_elements;
      for (int e = 0; e < image_elements; ++e)
        x[n * image_elements + e] = static_cast<float>((image[e] / 255.0 - mean) / stddev);
      out_labels[n] = labels[indices[n]];
    }
  }

  void conv2d_forward(const ConvShape& shape, const float* x, const float* w, const float* b,
                      float* y) override {
    const int pixels = shape.out_height() * shape.out_width();
    std::vector<double> sum = zeros(std::int64_t{shape.batch} * shape.out_channels * pixels);
    for (std::size_t k = 0; k < sum.size(); ++k)
      sum[k] = b[k / static_cast<std::size_t>(pixels) % static_cast<std::size_t>(shape.out_channels)];
    for_each_product(shape, [&](int ix, int iw, int iy) {
      sum[static_cast<std::size_t>(iy)] += static_cast<double>(x[ix]) * w[iw];
    });
    store(sum, y);
  }

  void conv2d_backward(const ConvShape& shape, const float* x, const float* w, const float* dy, float* dx,
                       float* dw, float* db) override {
    const int pixels = shape.out_height() * shape.out_width();
    std::vector<double> sum_dx =
        zeros(std::int64_t{shape.batch} * shape.in_channels * shape.height * shape.width);
    std::vector<double> sum_dw = zeros(std::int64_t{shape.out_channels} * shape.in_channels / shape.groups *
                                       shape.kernel * shape.kernel);
    for_each_product(shape, [&](int ix, int iw, int iy) {
      sum_dx[static_cast<std::size_t>(ix)] += static_cast<double>(w[iw]) * dy[iy];
      sum_dw[static_cast<std::size_t>(iw)] += static_cast<double>(x[ix]) * dy[iy];
    });
    for (int o = 0; o < shape.out_channels; ++o) {
      double sum = 0;
      for (int n = 0; n < shape.batch; ++n)
        for (int k = 0; k < pixels; ++k) sum += dy[(n * shape.out_channels + o) * pixels + k];
      db[o] = static_cast<float>(sum);
    }
    store(sum_dw, dw);
    if (dx != nullptr) store(sum_dx, dx);
  }

  void linear_forward(const LinearShape& s, const float* x, const float* w, const float* b, float* y,
                      bool relu) override {
    for (int n = 0; n < s.batch; ++n)
      for (int o = 0; o < s.out_features; ++o) {
        double sum = b[o];
        for (int i = 0; i < s.in_features; ++i)
          sum += static_cast<double>(x[n * s.in_features + i]) * w[o * s.in_features + i];
        y[n * s.out_features + o] = static_cast<float>(relu && sum < 0 ? 0.0 : sum);
      }
  }

  void linear_backward(const LinearShape& s, const float* x, const float* w, const float* y, float* dy,
                       float* dx, float* dw, float* db, bool relu) override {
    if (relu)
      for (int k = 0; k < s.batch * s.out_features; ++k)
        dy[k] = y[k] <= 0 ? 0.0F : dy[k];  // as PyTorch: a NaN lets the gradient pass
    for (int o = 0; o < s.out_features; ++o) {
      double sum = 0;
      for (int n = 0; n < s.batch; ++n) sum += dy[n * s.out_features + o];
      db[o] = static_cast<float>(sum);
      for (int i = 0; i < s.in_features; ++i) {
        sum = 0;
        for (int n = 0; n < s.batch; ++n)
          sum += static_cast<double>(dy[n * s.out_features + o]) * x[n * s.in_features + i];
        dw[o * s.in_features + i] = static_cast<float>(sum);
      }
    }
    if (dx == nullptr) return;
    for (int n = 0; n < s.batch; ++n)
      for (int i = 0; i < s.in_features; ++i) {
        double sum = 0;
        for (int o = 0; o < s.out_features; ++o)
          sum += static_cast<double>(dy[n * s.out_features + o]) * w[o * s.in_features + i];
        dx[n * s.in_features + i] = static_cast<float>(sum);
      }
  }

  void cross_entropy(const nn::LossArgs& args, LossTotals* totals) override {
    const auto [logits, labels, batch, classes, dlogits, label_smoothing, scale_at] = args;
    for (int n = 0; n < batch; ++n) {
      const float* row = logits + n * classes;
      MUSTER_CHECK(labels[n] >= 0 && labels[n] < classes, "a label is outside the classes of the model");
      const float* largest = std::max_element(row, row + classes);
      double sum = 0;
      for (int c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(row[c]) - *largest);
      const double smoothing = label_smoothing, spread = smoothing / classes;
      double target = (1 - smoothing) * row[labels[n]];
      for (int c = 0; c < classes; ++c) target += spread * row[c];
      totals->loss_sum += std::log(sum) + *largest - target;
      totals->correct += largest - row == labels[n] ? 1 : 0;
      std::vector<int> order(static_cast<std::size_t>(classes));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [row](int a, int b) { return row[a] > row[b]; });
      const auto first_five = order.begin() + std::min(classes, 5);
      totals->correct5 += std::find(order.begin(), first_five, labels[n]) != first_five ? 1 : 0;
      if (dlogits == nullptr) continue;
      for (int c = 0; c < classes; ++c) {
        const double p = std::exp(static_cast<double>(row[c]) - *largest) / sum;
        const double wanted = (c == labels[n] ? 1.0 - smoothing : 0.0) + spread;
        const double scale = scale_at == nullptr ? 1 : *scale_at;
        dlogits[n * classes + c] = static_cast<float>((p - wanted) / batch * scale);
      }
    }
    totals->num_samples += batch;
  }
};

}  // namespace reference

[[nodiscard]] inline std::unique_ptr<Kernels> make_reference_kernels() {
  return std::make_unique<reference::ReferenceKernels>();
}

}  // namespace muster::testing
