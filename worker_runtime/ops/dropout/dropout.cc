// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/dropout/dropout.h"

#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

/// The mask is drawn again in backward: it is a function of seed, step, shard, operation and element.
class Dropout final : public Operation {
 public:
  explicit Dropout(float p) : p_(p) {}

  std::string_view type() const override { return "Dropout"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1 || !(p_ >= 0 && p_ <= 1))
      return invalid("Dropout of {} with p {}: it takes one input and a p within 0 and 1", to_text(inputs),
                     p_);
    return inputs[0];
  }
  bool draws_random_numbers() const override { return true; }
  /// A value's number is its place in NCHW.
  TensorFormat format(Device& device, const TensorFormat& offered) const override {
    return {device.type() == DeviceType::kCuda ? offered.dtype : DType::kFloat32, Layout::kNCHW};
  }
  bool backward_reads_x() const override { return false; }
  bool backward_reads_y() const override { return false; }
  void forward(const Frame& f) const override {
    if (f.mode == Mode::kInference) return f.device->copy_on_device(f.y.data, f.x[0].data, f.y.size_bytes());
    apply_mask(f, f.x[0], f.y);
  }
  void backward(const Frame& f) const override {
    if (f.dx[0]) apply_mask(f, f.dy, f.dx[0]);
  }

 private:
  void apply_mask(const Frame& f, const Tensor& from, const Tensor& to) const {
    const DropoutBody body{to.dtype, from.data, to.data, to.count(), f.random, f.operation, p_};
    if constexpr (kHasCuda)
      if (f.stream != nullptr) return f.report_cuda(cuda::dropout(body, f.stream), "dropout");
    std::int64_t i = 0;
    for (; i + 4 <= body.count; i += 4) body.at<4>(i);
    for (; i < body.count; ++i) body.at<1>(i);
  }

  float p_;
};

}  // namespace

Value dropout(Value x, float p) {
  return apply("", std::make_unique<Dropout>(p), {x});
}

void advance(const Frame& f) {
  if constexpr (kHasCuda)
    if (f.stream != nullptr) return f.report_cuda(cuda::advance(f.random, f.stream), "dropout's step");
  advance(*f.random);
}

}  // namespace muster::nn
