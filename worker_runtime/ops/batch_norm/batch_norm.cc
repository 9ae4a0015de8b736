// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/batch_norm/batch_norm.h"

#include <cmath>

#include <muster/nn.h>

#include "worker_runtime/kernels/kernels.h"
#include "worker_runtime/ops/lanes.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

/// A term of each value of one channel: summed per plane in float, over planes in double.
template <class Term>
double channel_sum(const BatchNormSizes& s, int channel, Term term) {
  double total = 0;
  for (int n = 0; n < s.batch; ++n) {
    const std::size_t first = (static_cast<std::size_t>(n) * static_cast<std::size_t>(s.channels) +
                               static_cast<std::size_t>(channel)) *
                              static_cast<std::size_t>(s.pixels);
    total += sum_of(static_cast<std::size_t>(s.pixels), [&](std::size_t i) { return term(first + i); });
  }
  return total;
}

/// Calls each(i) for every element of one channel.
template <class Each>
void for_each_in(const BatchNormSizes& s, int channel, Each each) {
  for (int n = 0; n < s.batch; ++n) {
    const std::size_t first = (static_cast<std::size_t>(n) * static_cast<std::size_t>(s.channels) +
                               static_cast<std::size_t>(channel)) *
                              static_cast<std::size_t>(s.pixels);
    for (std::size_t i = 0; i < static_cast<std::size_t>(s.pixels); ++i) each(first + i);
  }
}

/// In training the batch's mean and (biased) variance, of which the running ones take `momentum`, the
/// variance unbiased; in inference the running ones.
class BatchNorm2d final : public Operation {
 public:
  explicit BatchNorm2d(const BatchNorm2dOptions& options) : options_(options) {}

  std::string_view type() const override { return "BatchNorm2d"; }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1 || inputs[0].size() != 3)
      return fail(ErrorCode::kInvalidArgument,
                  "BatchNorm2d expects one input (channels, height, width), it has " + to_text(inputs));
    if (!(options_.eps > 0) || !(options_.momentum >= 0 && options_.momentum <= 1))
      return fail(ErrorCode::kInvalidArgument, "BatchNorm2d: eps must be positive, momentum within 0 and 1");
    channels_ = inputs[0][0];
    return inputs[0];
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {channels_}, constant(1)}, {"bias", {channels_}, constant(0)}};
  }
  std::vector<BufferSpec> buffers() const override {
    return {{"running_mean", {channels_}, 0}, {"running_var", {channels_}, 1}};
  }
  std::size_t saved_bytes(int /*batch*/) const override {
    return 2 * static_cast<std::size_t>(channels_) * sizeof(float);
  }
  bool backward_reads_y() const override { return false; }

  void forward(const Frame& f) const override {
    const BatchNormSizes s = sizes_of(f);
    const float *x = f.x[0].f32(), *weight = f.params[0], *bias = f.params[1];
    float *running_mean = f.buffers[0], *running_var = f.buffers[1], *y = f.y.f32();
    auto* const saved = reinterpret_cast<float*>(f.saved);
    const bool training = f.mode == Mode::kTraining;
#ifdef MUSTER_HAS_CUDA
    if (f.device == Device::kCuda)
      return f.report_cuda(
          training ? cuda::batch_norm_train(s, x, weight, bias, running_mean, running_var, saved, y, f.stream)
                   : cuda::batch_norm_infer(s, x, weight, bias, running_mean, running_var, y, f.stream),
          "batch_norm2d");
#endif
    const double count = static_cast<double>(s.batch) * s.pixels;
    for (int c = 0; c < s.channels; ++c) {
      float mean = running_mean[c], inverse = 1 / std::sqrt(running_var[c] + s.eps);
      if (training) {
        mean = static_cast<float>(channel_sum(s, c, [x](std::size_t i) { return x[i]; }) / count);
        const double squares =
            channel_sum(s, c, [x, mean](std::size_t i) { return (x[i] - mean) * (x[i] - mean); });
        inverse = static_cast<float>(1 / std::sqrt(squares / count + static_cast<double>(s.eps)));
        running_mean[c] += s.momentum * (mean - running_mean[c]);
        // Of one value there is no unbiased variance; PyTorch refuses to train on it.
        const auto unbiased = static_cast<float>(squares / (count > 1 ? count - 1 : 1));
        running_var[c] += s.momentum * (unbiased - running_var[c]);
        saved[c] = mean;
        saved[s.channels + c] = inverse;
      }
      const float scale = weight[c] * inverse, shift = bias[c] - mean * scale;
      for_each_in(s, c, [=](std::size_t i) { y[i] = x[i] * scale + shift; });
    }
  }

  void backward(const Frame& f) const override {
    const BatchNormSizes s = sizes_of(f);
    const float *x = f.x[0].f32(), *weight = f.params[0], *dy = f.dy.f32();
    const auto* const saved = reinterpret_cast<const float*>(f.saved);
    float* dx = f.dx[0].f32();
#ifdef MUSTER_HAS_CUDA
    if (f.device == Device::kCuda)
      return f.report_cuda(
          cuda::batch_norm_backward(s, x, weight, saved, dy, dx, f.grads[0], f.grads[1], f.stream),
          "batch_norm2d backward");
#endif
    const double count = static_cast<double>(s.batch) * s.pixels;
    for (int c = 0; c < s.channels; ++c) {
      const float mean = saved[c], inverse = saved[s.channels + c];
      const double sum = channel_sum(s, c, [dy](std::size_t i) { return dy[i]; });
      const double product =
          channel_sum(s, c, [=](std::size_t i) { return dy[i] * (x[i] - mean); }) * inverse;
      f.grads[0][c] = static_cast<float>(product);
      f.grads[1][c] = static_cast<float>(sum);
      if (dx == nullptr) continue;
      // dx = weight * inverse * (dy - sum / count - (x - mean) * inverse * product / count)
      const float scale = weight[c] * inverse;
      const float slope = static_cast<float>(-scale * inverse * product / count);
      const float shift = static_cast<float>(-scale * sum / count);
      for_each_in(s, c, [=](std::size_t i) { dx[i] = scale * dy[i] + slope * (x[i] - mean) + shift; });
    }
  }

 private:
  BatchNormSizes sizes_of(const Frame& f) const {
    const Tensor& x = f.x[0];
    return {x.batch(), x.channels(), x.height() * x.width(), options_.eps, options_.momentum};
  }

  BatchNorm2dOptions options_;
  int channels_ = 0;
};

}  // namespace

Value batch_norm2d(std::string name, Value x, const BatchNorm2dOptions& options) {
  return apply(std::move(name), std::make_unique<BatchNorm2d>(options), {x});
}

}  // namespace muster::nn
