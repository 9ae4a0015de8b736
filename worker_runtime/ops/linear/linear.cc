// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/linear/linear.h"

#include <algorithm>
#include <limits>
#include <string>

#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

/// y = x w^T + b, then max(., 0) with `relu`.
class Linear final : public Operation {
 public:
  Linear(int out_features, bool relu) : out_(out_features), relu_(relu) {}
  [[nodiscard]] std::unique_ptr<Operation> with_relu() const {
    return relu_ ? nullptr : std::make_unique<Linear>(out_, true);
  }

  std::string_view type() const override { return "Linear"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1 || inputs[0].size() != 1 || inputs[0][0] < 1)
      return invalid("Linear expects one input (features), it has {}; flatten() makes one", to_text(inputs));
    if (out_ < 1) return invalid("Linear: {} output features; it has at least 1", out_);
    in_ = inputs[0][0];
    return Shape{out_};
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {out_, in_}, kaiming_uniform(in_)}, {"bias", {out_}, uniform_by_fan_in(in_)}};
  }
  bool backward_reads_y() const override { return relu_; }
  Autocast autocast() const override { return Autocast::kLower; }
  std::int64_t macs() const override { return std::int64_t{in_} * out_; }
  TensorFormat format(Device& device, const TensorFormat& offered) const override {
    return {device.type() == DeviceType::kCuda ? offered.dtype : DType::kFloat32, Layout::kNCHW};
  }
  Result<std::unique_ptr<Prepared>> prepare(Device& device, int batch,
                                            const TensorFormat& format) const override {
    return PreparedLinear::make(device, {batch, in_, out_, format.dtype});
  }
  void forward(const Frame& f) const override {
    layer(f).forward(f.x[0].data, f.param(0), f.param(1), f.y.data, relu_, f.workspace);
  }
  void backward(const Frame& f) const override {
    layer(f).backward(f.x[0].data, f.param(0), f.y.data, f.dy.data, f.dx[0].data, f.grads[0], f.grads[1],
                      relu_, f.workspace);
  }

 private:
  static PreparedLinear& layer(const Frame& f) { return static_cast<PreparedLinear&>(*f.prepared); }

  int in_ = 0;
  int out_;
  bool relu_;
};

}  // namespace

Result<std::unique_ptr<PreparedLinear>> PreparedLinear::make(Device& device, const LinearShape& shape) {
  const double batch = shape.batch, in = shape.in_features, out = shape.out_features;
  if (std::max({batch * in, batch * out, in * out}) > std::numeric_limits<int>::max())
    return fail(ErrorCode::kUnsupported,
                "linear {}->{} on a batch of {}: a tensor would exceed 2^31 elements; use a smaller batch",
                shape.in_features, shape.out_features, shape.batch);
  if constexpr (kHasCuda)
    if (device.stream() != nullptr) return cuda::prepare_linear(device, shape);
  return make_cpu_linear(shape);
}

Value linear(std::string name, Value x, int out_features) {
  return apply(std::move(name), std::make_unique<Linear>(out_features, false), {x});
}

std::unique_ptr<Operation> linear_with_relu(const Operation& operation) {
  const auto* const linear = dynamic_cast<const Linear*>(&operation);
  return linear == nullptr ? nullptr : linear->with_relu();
}

}  // namespace muster::nn
