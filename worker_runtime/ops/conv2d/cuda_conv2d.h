// SPDX-License-Identifier: Apache-2.0
// muster's own convolution on a GPU. An image whose planes fit into a block's shared memory (LeNet's sizes)
// is loaded there once and its outputs are summed from there; the filter's gradient is summed image by image
// in many blocks and then over these, always in the same order. Other shapes are matrix products by tiles
// (gemm.cuh), the filter's gradient with its depth split over blocks. Each function enqueues and returns a
// cudaError_t. Tensors as ConvShape says, in any format; b and db may be nullptr.
#pragma once

#include "worker_runtime/ops/conv2d/conv2d.h"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

class OwnConv2d {
 public:
  explicit OwnConv2d(const ConvShape& shape);

  /// For backward_filter().
  [[nodiscard]] std::size_t workspace_bytes() const;
  [[nodiscard]] int forward(const void* x, const void* w, const void* b, void* y, void* stream) const;
  [[nodiscard]] int backward_data(const void* w, const void* dy, void* dx, void* stream) const;
  [[nodiscard]] int backward_filter(const void* x, const void* dy, float* dw, float* db, void* workspace,
                                    void* stream) const;
  /// y += b per channel, and db = the sums of dy per channel: what is left to do beside a library.
  [[nodiscard]] int add_bias(void* y, const void* b, void* stream) const;
  [[nodiscard]] int bias_gradient(const void* dy, float* db, void* stream) const;

  /// x, or y: images of `channels` and `pixels`, and how far apart they lie.
  struct Images {
    int channels, pixels, channel_step, pixel_step;
    [[nodiscard]] MUSTER_HD std::int64_t at(int image, int channel, int pixel = 0) const {
      return std::int64_t{image} * channels * pixels + channel * channel_step + pixel * pixel_step;
    }
  };
  /// As the kernels see the shape; sizes are below 2^31.
  struct Args {
    int batch, groups, kernel, stride, padding;
    int group_in, height, width;
    int group_out, out_height, out_width;
    Images x, y;
  };

 private:
  [[nodiscard]] bool fits_shared(int planes, int pixels) const;
  [[nodiscard]] bool sums_images() const;
  [[nodiscard]] int slices() const;  // of the sums for the filter's gradient

  Args args_;
  DType dtype_;
};

}  // namespace muster::nn::cuda
