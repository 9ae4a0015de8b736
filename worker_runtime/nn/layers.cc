// SPDX-License-Identifier: Apache-2.0
// The layers: each is its shape and the kernel it calls.
#include <numeric>

#include <muster/nn.h>

#include "worker_runtime/kernels/kernels.h"

namespace muster::nn {
namespace {

std::string to_text(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

class Conv2d final : public Layer {
 public:
  explicit Conv2d(const Conv2dOptions& options) : options_(options) {}

  Result<Shape> configure(const Shape& input) override {
    const Conv2dOptions& o = options_;
    if (o.in_channels < 1 || o.out_channels < 1 || o.kernel < 1 || o.stride < 1 || o.padding < 0)
      return fail(ErrorCode::kInvalidArgument,
                  "Conv2d: channels, kernel and stride must be positive, padding not negative");
    if (input.size() != 3 || input[0] != o.in_channels)
      return fail(ErrorCode::kInvalidArgument, "Conv2d expects (" + std::to_string(o.in_channels) +
                                                   ", height, width), its input is " + to_text(input));
    if (input[1] + 2 * o.padding < o.kernel || input[2] + 2 * o.padding < o.kernel)
      return fail(ErrorCode::kInvalidArgument, "Conv2d: a kernel of " + std::to_string(o.kernel) +
                                                   " is larger than its input " + to_text(input));
    height_ = input[1];
    width_ = input[2];
    const kernels::ConvShape shape = shape_for(1);
    return Shape{o.out_channels, shape.out_height(), shape.out_width()};
  }
  std::vector<ParameterSpec> parameters() const override {
    const std::int64_t k = options_.kernel;
    const std::int64_t fan_in = options_.in_channels * k * k;
    return {{"weight", {options_.out_channels, options_.in_channels, k, k}, Init::kKaimingUniform, fan_in},
            {"bias", {options_.out_channels}, Init::kFanInUniform, fan_in}};
  }
  std::int64_t macs() const override {
    const kernels::ConvShape shape = shape_for(1);
    return std::int64_t{shape.out_height()} * shape.out_width() * options_.out_channels *
           options_.in_channels * options_.kernel * options_.kernel;
  }
  Result<void> plan(kernels::Kernels& kernels, int batch) const override {
    return kernels.plan_conv2d(shape_for(batch));
  }
  void forward(const Frame& f) const override {
    f.kernels->conv2d_forward(shape_for(f.batch), f.x, f.params[0], f.params[1], f.y);
  }
  void backward(const Frame& f) const override {
    f.kernels->conv2d_backward(shape_for(f.batch), f.x, f.params[0], f.dy, f.dx, f.grads[0], f.grads[1]);
  }

 private:
  kernels::ConvShape shape_for(int batch) const {
    return {batch,           options_.in_channels, height_,         width_, options_.out_channels,
            options_.kernel, options_.stride,      options_.padding};
  }

  Conv2dOptions options_;
  int height_ = 0;
  int width_ = 0;
};

class ReluMaxPool2d final : public Layer {
 public:
  explicit ReluMaxPool2d(int window) : window_(window) {}

  Result<Shape> configure(const Shape& input) override {
    // The kernels keep the winner's place in the window in a byte, 255 meaning none.
    if (window_ < 1 || window_ > 15)
      return fail(ErrorCode::kInvalidArgument,
                  "MaxPool2d: a window of " + std::to_string(window_) + ", 1 to 15 are supported");
    if (input.size() != 3 || input[1] < window_ || input[2] < window_)
      return fail(ErrorCode::kInvalidArgument, "MaxPool2d with a window of " + std::to_string(window_) +
                                                   " expects (channels, height, width), its input is " +
                                                   to_text(input));
    input_ = input;
    return Shape{input[0], input[1] / window_, input[2] / window_};
  }
  std::size_t scratch_bytes(int batch) const override {
    return static_cast<std::size_t>(batch) * static_cast<std::size_t>(input_[0]) *
           static_cast<std::size_t>(input_[1] / window_) * static_cast<std::size_t>(input_[2] / window_);
  }
  void forward(const Frame& f) const override {
    f.kernels->relu_max_pool_forward(shape_for(f.batch), f.x, f.y, f.scratch);
  }
  void backward(const Frame& f) const override {
    if (f.dx != nullptr) f.kernels->relu_max_pool_backward(shape_for(f.batch), f.dy, f.scratch, f.dx);
  }

 private:
  kernels::PoolShape shape_for(int batch) const { return {batch, input_[0], input_[1], input_[2], window_}; }

  int window_;
  Shape input_;
};

class Flatten final : public Layer {
 public:
  Result<Shape> configure(const Shape& input) override {
    return Shape{std::accumulate(input.begin(), input.end(), 1, std::multiplies<>())};
  }
  bool is_view() const override { return true; }
  void forward(const Frame& /*frame*/) const override {}
  void backward(const Frame& /*frame*/) const override {}
};

class Linear final : public Layer {
 public:
  Linear(int in_features, int out_features, bool relu) : in_(in_features), out_(out_features), relu_(relu) {}

  Result<Shape> configure(const Shape& input) override {
    if (in_ < 1 || out_ < 1) return fail(ErrorCode::kInvalidArgument, "Linear: features must be positive");
    if (input != Shape{in_})
      return fail(ErrorCode::kInvalidArgument,
                  "Linear expects (" + std::to_string(in_) + "), its input is " + to_text(input));
    return Shape{out_};
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {out_, in_}, Init::kKaimingUniform, in_}, {"bias", {out_}, Init::kFanInUniform, in_}};
  }
  std::int64_t macs() const override { return std::int64_t{in_} * out_; }
  Result<void> plan(kernels::Kernels& kernels, int batch) const override {
    return kernels.plan_linear({batch, in_, out_});
  }
  void forward(const Frame& f) const override {
    f.kernels->linear_forward({f.batch, in_, out_}, f.x, f.params[0], f.params[1], f.y, relu_);
  }
  void backward(const Frame& f) const override {
    f.kernels->linear_backward({f.batch, in_, out_}, f.x, f.params[0], f.y, f.dy, f.dx, f.grads[0],
                               f.grads[1], relu_);
  }

 private:
  int in_;
  int out_;
  bool relu_;
};

}  // namespace

std::unique_ptr<Layer> conv2d(const Conv2dOptions& options) {
  return std::make_unique<Conv2d>(options);
}
std::unique_ptr<Layer> relu_max_pool2d(int window) {
  return std::make_unique<ReluMaxPool2d>(window);
}
std::unique_ptr<Layer> flatten() {
  return std::make_unique<Flatten>();
}
std::unique_ptr<Layer> linear(int in_features, int out_features, bool relu) {
  return std::make_unique<Linear>(in_features, out_features, relu);
}

}  // namespace muster::nn
