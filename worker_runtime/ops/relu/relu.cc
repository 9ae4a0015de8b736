// SPDX-License-Identifier: Apache-2.0
#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {

namespace cuda {  // relu.cu
int relu_forward(DType dtype, const void* x, void* y, std::int64_t count, void* stream);
int relu_backward(DType dtype, const void* y, const void* dy, void* dx, std::int64_t count, void* stream);
}  // namespace cuda

namespace {

/// max(x, 0). A NaN stays one, and lets its gradient pass, as in PyTorch.
class Relu final : public AnyFormatOperation {
 public:
  std::string_view type() const override { return "ReLU"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1) return invalid("ReLU expects one input, it has {}", to_text(inputs));
    return inputs[0];
  }
  bool backward_reads_x() const override { return false; }
  void forward(const Frame& f) const override {
    const std::int64_t count = f.y.count();
    if constexpr (kHasCuda)
      if (f.stream != nullptr)
        return f.report_cuda(cuda::relu_forward(f.y.dtype, f.x[0].data, f.y.data, count, f.stream), "relu");
    const float* x = f.x[0].f32();
    float* y = f.y.f32();
    for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] <= 0 ? 0 : x[i];
  }
  void backward(const Frame& f) const override {
    if (!f.dx[0]) return;
    const std::int64_t count = f.y.count();
    if constexpr (kHasCuda)
      if (f.stream != nullptr)
        return f.report_cuda(
            cuda::relu_backward(f.y.dtype, f.y.data, f.dy.data, f.dx[0].data, count, f.stream),
            "relu backward");
    const float *y = f.y.f32(), *dy = f.dy.f32();
    float* dx = f.dx[0].f32();
    for (std::int64_t i = 0; i < count; ++i) {
      const float gradient = dy[i];  // read in any case, so that vectors may
      dx[i] = y[i] <= 0 ? 0 : gradient;
    }
  }
};

}  // namespace

Value relu(Value x) {
  return apply("", std::make_unique<Relu>(), {x});
}

}  // namespace muster::nn
