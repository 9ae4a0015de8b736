// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/conv2d/conv2d.h"

#include <algorithm>
#include <limits>
#include <string>

#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

class Conv2d final : public Operation {
 public:
  explicit Conv2d(const Conv2dOptions& options) : options_(options) {}

  std::string_view type() const override { return "Conv2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    const Conv2dOptions& o = options_;
    if (o.out_channels < 1 || o.kernel < 1 || o.stride < 1 || o.padding < 0 || o.padding > INT16_MAX)
      return invalid(
          "Conv2d of {} channels, kernel {}, stride {}, padding {}: each is at least 1, the padding 0 to "
          "32767",
          o.out_channels, o.kernel, o.stride, o.padding);
    if (inputs.size() != 1 || inputs[0].size() != 3 || inputs[0][0] < 1)
      return invalid(
          "Conv2d expects one input (channels, height, width), it has {}; give the graph's input three "
          "dimensions",
          to_text(inputs));
    const Shape& input = inputs[0];
    if (o.groups < 1 || input[0] % o.groups != 0 || o.out_channels % o.groups != 0)
      return invalid(
          "Conv2d: {} groups do not divide its {} input and {} output channels; choose a divisor of both",
          o.groups, input[0], o.out_channels);
    if (input[1] + 2 * o.padding < o.kernel || input[2] + 2 * o.padding < o.kernel)
      return invalid(
          "Conv2d: a kernel of {} is larger than its input {}; use a smaller kernel or more padding",
          o.kernel, to_text(input));
    shape_ = {1, input[0], input[1], input[2], o.out_channels, o.kernel, o.stride, o.padding, o.groups};
    return Shape{o.out_channels, shape_.out_height(), shape_.out_width()};
  }
  std::vector<ParameterSpec> parameters() const override {
    const std::int64_t k = options_.kernel;
    const std::int64_t group_in = shape_.in_channels / shape_.groups, fan_in = group_in * k * k;
    std::vector<ParameterSpec> specs{{"weight",
                                      {shape_.out_channels, group_in, k, k},
                                      options_.weight_init ? options_.weight_init : kaiming_uniform(fan_in)}};
    if (options_.bias) specs.push_back({"bias", {shape_.out_channels}, uniform_by_fan_in(fan_in)});
    return specs;
  }
  /// Without a bias the CPU's forms take zeros in its place, and a place for its gradient; a GPU's nothing.
  std::size_t workspace_bytes(int /*batch*/) const override {
    return options_.bias ? 0 : (bias_bytes() + 255) / 256 * 256;  // the convolution's own comes behind
  }
  bool backward_reads_y() const override { return false; }
  Autocast autocast() const override { return Autocast::kLower; }
  std::int64_t macs() const override {
    return std::int64_t{shape_.out_height()} * shape_.out_width() * shape_.out_channels *
           (shape_.in_channels / shape_.groups) * shape_.kernel * shape_.kernel;
  }
  TensorFormat format(Device& device, const TensorFormat& offered) const override {
    if constexpr (kHasCuda)
      if (device.type() == DeviceType::kCuda) return cuda::conv2d_format(device, shape_, offered);
    return {};
  }
  Result<std::unique_ptr<Prepared>> prepare(Device& device, int batch,
                                            const TensorFormat& format) const override {
    ConvShape shape = shape_;
    shape.batch = batch;
    shape.format = format;
    return PreparedConv2d::make(device, shape);
  }
  void forward(const Frame& f) const override {
    float* const zeros = without_bias(f);
    if (zeros != nullptr) f.device->zero(zeros, bias_bytes());
    convolution(f).forward(f.x[0].data, f.param(0), options_.bias ? f.param(1) : zeros, f.y.data,
                           f.workspace + workspace_bytes(0));
  }
  void backward(const Frame& f) const override {
    convolution(f).backward(f.x[0].data, f.param(0), f.dy.data, f.dx[0].data, f.grads[0],
                            options_.bias ? f.grads[1] : without_bias(f), f.workspace + workspace_bytes(0));
  }

 private:
  static PreparedConv2d& convolution(const Frame& f) { return static_cast<PreparedConv2d&>(*f.prepared); }
  float* without_bias(const Frame& f) const {
    return !options_.bias && f.stream == nullptr ? reinterpret_cast<float*>(f.workspace) : nullptr;
  }
  std::size_t bias_bytes() const { return static_cast<std::size_t>(shape_.out_channels) * sizeof(float); }

  Conv2dOptions options_;
  ConvShape shape_;
};

}  // namespace

Result<std::unique_ptr<PreparedConv2d>> PreparedConv2d::make(Device& device, const ConvShape& shape) {
  const double x = double{1} * shape.batch * shape.in_channels * shape.height * shape.width;
  const double y = double{1} * shape.batch * shape.out_channels * shape.out_height() * shape.out_width();
  const double w = double{1} * shape.in_channels * shape.out_channels * shape.kernel * shape.kernel;
  // Offsets inside a tensor are ints.
  if (std::max({x, y, w / shape.groups}) > std::numeric_limits<int>::max())
    return fail(ErrorCode::kUnsupported,
                "conv2d {}->{} on a batch of {} images of {}x{}: a tensor would exceed 2^31 elements; use a "
                "smaller batch",
                shape.in_channels, shape.out_channels, shape.batch, shape.height, shape.width);
  if constexpr (kHasCuda)
    if (device.stream() != nullptr) return cuda::prepare_conv2d(device, shape);
  if (auto direct = make_direct_conv(shape); direct != nullptr) return direct;
  return make_general_conv(shape);
}

Value conv2d(std::string name, Value x, const Conv2dOptions& options) {
  return apply(std::move(name), std::make_unique<Conv2d>(options), {x});
}

}  // namespace muster::nn
