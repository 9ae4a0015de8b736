// SPDX-License-Identifier: Apache-2.0
// muster's own convolution on a GPU. An image whose planes fit into a block's shared memory (LeNet's sizes)
// is loaded there once and its outputs are summed from there; the filter's gradient is summed image by image
// in many blocks and then over these, always in the same order. Other shapes are matrix products by tiles
// (gemm.cuh), the filter's gradient with its depth split over blocks. Tensors as ConvShape says, in any
// format; b and db may be nullptr.
#pragma once

#include "worker_runtime/ops/conv2d/conv2d.h"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

class OwnConv : public PreparedConv2d {
 public:
  OwnConv(Device& device, const ConvShape& shape);
  void forward(const void* x, const void* w, const void* b, void* y, void* workspace) override;
  void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                void* workspace) override;

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

 protected:
  /// y += b per channel, and db = the sums of dy per channel: what is left to do beside a library.
  void add_bias(void* y, const void* b) const;
  void bias_gradient(const void* dy, float* db) const;

  Device* device_;

 private:
  [[nodiscard]] int backward_filter(const void* x, const void* dy, float* dw, float* db,
                                    void* workspace) const;
  [[nodiscard]] bool fits_shared(int planes, int pixels) const;
  [[nodiscard]] bool sums_images() const;
  [[nodiscard]] int slices() const;  // of the sums for the filter's gradient

  Args args_;
  DType dtype_;
};

/// By cuDNN (dnn_conv.cc); nullptr: it has no engine that is allowed.
[[nodiscard]] std::unique_ptr<PreparedConv2d> make_dnn_conv(Device& device, const ConvShape& shape);

}  // namespace muster::nn::cuda
