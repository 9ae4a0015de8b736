// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cuda/body_kernels.h"

#include <array>
#include <vector>

#include "worker_runtime/ops/conv2d/conv_body.h"
#include "worker_runtime/ops/linear/linear_body.h"

namespace muster::testing {
namespace {

using namespace nn;
using namespace nn::cuda;

/// Every thread of the launch, one after another.
template <class Body>
void for_each_cell(const Grid& grid, Body body) {
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x)
      for (unsigned thread = 0; thread < grid.block; ++thread) body(Cell{x, y, thread});
}

/// A butterfly over 32 lanes, as warp.cuh does it: every lane adds the value of the lane `distance` away.
template <class Value, class Combine>
Value butterfly(std::array<Value, kWarp> lanes, Combine combine) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    const std::array<Value, kWarp> before = lanes;
    for (unsigned lane = 0; lane < kWarp; ++lane)
      lanes[lane] = combine(before[lane], before[lane ^ distance]);
  }
  return lanes[0];
}

float sum_of(const std::array<float, kWarp>& lanes) {
  return butterfly(lanes, [](float a, float b) { return a + b; });
}

template <int kColumns>
void filter_gradient(const ConvArgs& args, const float* x, const float* dy, float* dw, float* db) {
  const Grid grid = conv_backward_filter_grid<kColumns>(args);
  for (unsigned block = 0; block < grid.x; ++block) {
    std::vector<FilterSums<kColumns>> threads;
    for (unsigned thread = 0; thread < grid.block; ++thread)
      threads.push_back(conv_filter_partial<kColumns>(args, x, dy, grid.block, {block, 0, thread}));
    for (int q = 0; q < kColumns; ++q) {
      std::array<float, kWarp> of_warp{};
      for (unsigned warp = 0; warp < grid.block / kWarp; ++warp) {
        std::array<float, kWarp> lanes{};
        for (unsigned lane = 0; lane < kWarp; ++lane) lanes[lane] = threads[warp * kWarp + lane].value[q];
        of_warp[warp] = sum_of(lanes);
      }
      conv_filter_store<kColumns>(args, block, q, sum_of(of_warp), dw, db);
    }
  }
}

template <int kKernel>
void convolve(const ConvArgs& args, const float* x, const float* w, const float* b, float* y) {
  for_each_cell(conv_forward_grid(args),
                [&](Cell cell) { conv_forward_cell<kKernel>(args, x, w, b, y, cell); });
}

template <int kKernel>
void convolve_back(const ConvArgs& args, const float* w, const float* dy, float* dx) {
  for_each_cell(conv_backward_data_grid(args),
                [&](Cell cell) { conv_backward_data_cell<kKernel>(args, w, dy, dx, cell); });
}

class BodyKernels final : public Kernels {
 public:
  BodyKernels() : Kernels(*make_compute(DeviceType::kCpu)) {}

  void gather_normalize(const std::uint8_t* images, const std::uint8_t* labels, const std::int32_t* indices,
                        int batch, int image_elements, float mean, float stddev, float* x,
                        std::int32_t* out_labels) override {
    const GatherArgs args{images, labels, indices, batch, image_elements, mean, stddev, x, out_labels};
    for (std::int64_t i = 0; i < std::int64_t{batch} * image_elements; ++i) gather_element(args, i);
  }

  void conv2d_forward(const ConvShape& shape, const float* x, const float* w, const float* b,
                      float* y) override {
    const ConvArgs args = arguments_of(shape);
    if (args.kernel == 5) return convolve<5>(args, x, w, b, y);
    if (args.kernel == 3) return convolve<3>(args, x, w, b, y);
    convolve<0>(args, x, w, b, y);
  }

  void conv2d_backward(const ConvShape& shape, const float* x, const float* w, const float* dy, float* dx,
                       float* dw, float* db) override {
    const ConvArgs args = arguments_of(shape);
    if (args.kernel == 5) {
      filter_gradient<5>(args, x, dy, dw, db);
      if (dx != nullptr) convolve_back<5>(args, w, dy, dx);
    } else if (args.kernel == 3) {
      filter_gradient<3>(args, x, dy, dw, db);
      if (dx != nullptr) convolve_back<3>(args, w, dy, dx);
    } else {
      filter_gradient<1>(args, x, dy, dw, db);
      if (dx != nullptr) convolve_back<0>(args, w, dy, dx);
    }
  }

  void linear_forward(const LinearShape& shape, const float* x, const float* w, const float* b, float* y,
                      bool relu) override {
    const LinearArgs& args = shape;
    const Grid grid = linear_forward_grid(args);
    for (unsigned row_tile = 0; row_tile < grid.y; ++row_tile)
      for (unsigned block = 0; block < grid.x; ++block)
        for (unsigned warp = 0; warp < grid.block / kWarp; ++warp) {
          std::array<RowSums, kWarp> lanes;
          for (unsigned lane = 0; lane < kWarp; ++lane)
            lanes[lane] = linear_forward_partial(args, x, w, {block, row_tile, warp * kWarp + lane});
          RowSums sums;
          for (int m = 0; m < kRowTile; ++m) {
            std::array<float, kWarp> values{};
            for (unsigned lane = 0; lane < kWarp; ++lane) values[lane] = lanes[lane].value[m];
            sums.value[m] = sum_of(values);
          }
          for (unsigned lane = 0; lane < kWarp; ++lane)
            linear_forward_store(args, sums, b, y, relu, {block, row_tile, warp * kWarp + lane});
        }
  }

  void linear_backward(const LinearShape& shape, const float* x, const float* w, const float* y, float* dy,
                       float* dx, float* dw, float* db, bool relu) override {
    const LinearBackwardArgs args{shape, x, w, y, dy, dx, dw, db, relu};
    for_each_cell(linear_backward_grid(args), [&](Cell cell) { linear_backward_cell(args, cell); });
  }

  void cross_entropy(const LossArgs& args, LossTotals* totals) override {
    const int num_warps = static_cast<int>(loss_grid(args).block / kWarp);
    double loss_sum = 0;
    for (int warp = 0; warp < num_warps; ++warp) {
      double loss = 0;
      for (int row = warp; row < args.batch; row += num_warps) {
        std::array<Largest, kWarp> largest_of{};
        std::array<float, kWarp> sum_of_lane{};
        for (unsigned lane = 0; lane < kWarp; ++lane)
          largest_of[lane] = loss_largest(args, row, static_cast<int>(lane));
        const Largest largest = butterfly(largest_of, [](Largest a, Largest b) { return larger(a, b); });
        for (unsigned lane = 0; lane < kWarp; ++lane)
          sum_of_lane[lane] = loss_exp_sum(args, row, static_cast<int>(lane), largest.value);
        const float sum = sum_of(sum_of_lane);
        for (unsigned lane = 0; lane < kWarp; ++lane)
          sum_of_lane[lane] = loss_logit_sum(args, row, static_cast<int>(lane));
        const float logit_sum = sum_of(sum_of_lane);
        for (unsigned lane = 0; lane < kWarp; ++lane)
          loss_gradient(args, row, static_cast<int>(lane), largest.value, sum);
        loss += loss_of_row(args, row, largest.value, sum, logit_sum);
        totals->correct += largest.index == args.labels[row] ? 1 : 0;
      }
      loss_sum += loss;
    }
    totals->loss_sum += loss_sum;
    totals->num_samples += args.batch;
  }
};

}  // namespace

std::unique_ptr<Kernels> make_body_kernels() {
  return std::make_unique<BodyKernels>();
}

}  // namespace muster::testing
