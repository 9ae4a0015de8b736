// SPDX-License-Identifier: Apache-2.0
#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {

namespace cuda {
// add.cu
int add_forward(DType dtype, const void* a, const void* b, void* y, std::int64_t count, void* stream);
}  // namespace cuda

namespace {

class Add final : public AnyFormatOperation {
 public:
  std::string_view type() const override { return "Add"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 2 || inputs[0] != inputs[1])
      return invalid(
          "Add expects two inputs of one shape, they are {}; a conv2d() or linear() in front of one makes "
          "them alike",
          to_text(inputs));
    return inputs[0];
  }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    const std::int64_t count = f.y.count();
    if constexpr (kHasCuda)
      if (f.stream != nullptr)
        return f.report_cuda(
            cuda::add_forward(f.y.dtype, f.x[0].data, f.x[1].data, f.y.data, count, f.stream), "add");
    const float *a = f.x[0].f32(), *b = f.x[1].f32();
    float* const y = f.y.f32();
    for (std::int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
  }
  void backward(const Frame& f) const override {
    for (const Tensor& dx : f.dx)
      if (dx) f.device->copy_on_device(dx.data, f.dy.data, dx.size_bytes());
  }
};

}  // namespace

Value add(Value a, Value b) {
  return apply("", std::make_unique<Add>(), {a, b});
}

}  // namespace muster::nn
