// SPDX-License-Identifier: Apache-2.0
// DnnlConv: one convolution shape's oneDNN primitives, built once (milliseconds), executed many times. The
// CPU kernels own one per shape that direct_conv does not take. Tensors stay plain NCHW outside; where oneDNN
// prefers blocked ones, the reorders and their memory are part of the object. Runs on one thread: a rank has
// one core, whatever OMP_NUM_THREADS says. Failure to build is a Result; failure to execute is a bug and
// aborts.
#pragma once

#include <memory>

#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels {

class DnnlConv {
 public:
  [[nodiscard]] static Result<std::unique_ptr<DnnlConv>> make(const ConvShape& shape);
  ~DnnlConv();
  DnnlConv(const DnnlConv&) = delete;
  DnnlConv& operator=(const DnnlConv&) = delete;

  [[nodiscard]] const ConvShape& shape() const;
  void forward(const float* x, const float* w, const float* b, float* y);
  void backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db);

 private:
  struct Primitives;
  explicit DnnlConv(std::unique_ptr<Primitives> primitives);
  std::unique_ptr<Primitives> primitives_;
};

}  // namespace muster::kernels
