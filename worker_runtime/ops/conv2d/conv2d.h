// SPDX-License-Identifier: Apache-2.0
// A convolution of one shape on one device. Tensors are contiguous. Those that are void* are float32 NCHW on
// the CPU; on a GPU x, y and their gradients have ConvShape's format, w and b its type.
#pragma once

#include <muster/operation.h>

namespace muster::nn {

/// x (batch, in_channels, height, width), w (out_channels, in_channels / groups, kernel, kernel), b
/// (out_channels), y (batch, out_channels, out_height(), out_width()).
struct ConvShape {
  int batch = 0, in_channels = 0, height = 0, width = 0, out_channels = 0, kernel = 0, stride = 1,
      padding = 0, groups = 1;
  TensorFormat format = {};

  [[nodiscard]] int out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  [[nodiscard]] int out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  friend bool operator==(const ConvShape&, const ConvShape&) = default;
};

/// Who computes the shape is chosen when it is made; it allocates no memory of the device then or later.
struct PreparedConv2d : Prepared {
  [[nodiscard]] static Result<std::unique_ptr<PreparedConv2d>> make(Device& device, const ConvShape& shape);
  /// y = conv(x, w) + b. `workspace`: workspace_bytes. On a GPU b and db may be nullptr: there is no bias.
  virtual void forward(const void* x, const void* w, const void* b, void* y, void* workspace) = 0;
  /// dw, db are overwritten; dx is overwritten, or not computed when nullptr (first layer).
  virtual void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                        void* workspace) = 0;
};

// The CPU's two. Without im2col, for few channels, stride 1, no padding, kernels 3x3 and 5x5 and rows of at
// least eight outputs (direct_conv.cc); vectors run along an output row. Same bits on each run. nullptr: not
// for this shape, or not the faster one.
[[nodiscard]] std::unique_ptr<PreparedConv2d> make_direct_conv(const ConvShape& shape);

/// oneDNN's primitives, built once (milliseconds), executed many times. Tensors stay plain NCHW outside;
/// where oneDNN prefers blocked ones, the reorders and their memory are part of the object. Runs on one
/// thread: a rank has one core, whatever OMP_NUM_THREADS says. Failure to execute is a bug and aborts. Plain
/// loops in a build without oneDNN (MUSTER_GPU_HOST).
[[nodiscard]] Result<std::unique_ptr<PreparedConv2d>> make_general_conv(const ConvShape& shape);

namespace cuda {  // cuda_conv2d.cc
/// Operation::format(): NHWC for cuDNN in a half type.
[[nodiscard]] TensorFormat conv2d_format(Device& device, const ConvShape& shape, const TensorFormat& offered);
[[nodiscard]] std::unique_ptr<PreparedConv2d> prepare_conv2d(Device& device, const ConvShape& shape);
}  // namespace cuda

}  // namespace muster::nn
