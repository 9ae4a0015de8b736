// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/batch_norm/batch_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <muster/nn.h>
#include <muster/process_group.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {
namespace {

/// term(0) + ... + term(count - 1): by 16 lanes that a compiler keeps in a vector, added up in a fixed order,
/// so that a result does not depend on the machine.
template <class Term>
float sum_of(std::size_t count, Term term) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  float total = 0;
  for (; i < count; ++i) total += term(i);
  if (count < kLanes) return total;
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return total + lanes[0];
}

/// Where one sample's plane of one channel begins.
std::size_t plane_begin(const BatchNormSizes& s, int n, int channel) {
  return (static_cast<std::size_t>(n) * static_cast<std::size_t>(s.channels) +
          static_cast<std::size_t>(channel)) *
         static_cast<std::size_t>(s.pixels);
}

/// A term of each value of one channel: summed per plane in float, over planes in double.
template <class Term>
double channel_sum(const BatchNormSizes& s, int channel, Term term) {
  double total = 0;
  for (int n = 0; n < s.batch; ++n) {
    const std::size_t first = plane_begin(s, n, channel);
    total += sum_of(static_cast<std::size_t>(s.pixels), [&](std::size_t i) { return term(first + i); });
  }
  return total;
}

/// Calls each(i) for every element of one channel.
template <class Each>
void for_each_in(const BatchNormSizes& s, int channel, Each each) {
  for (int n = 0; n < s.batch; ++n) {
    const std::size_t first = plane_begin(s, n, channel);
    for (std::size_t i = 0; i < static_cast<std::size_t>(s.pixels); ++i) each(first + i);
  }
}

/// In training the mean and (biased) variance of the batch, with a group of all ranks' batches; of these the
/// running ones take `momentum`, the variance unbiased. In inference the running ones.
class BatchNorm2d final : public AnyFormatOperation {
 public:
  explicit BatchNorm2d(const BatchNorm2dOptions& options) : options_(options) {}
  void synchronize(ProcessGroup& group) { options_.group = &group; }

  std::string_view type() const override {
    return options_.group == nullptr ? "BatchNorm2d" : "SyncBatchNorm";
  }
  Result<Shape> configure(std::span<const Shape> inputs) override {
    if (inputs.size() != 1 || inputs[0].size() != 3)
      return invalid(
          "BatchNorm2d expects one input (channels, height, width), it has {}; put it in front of flatten()",
          to_text(inputs));
    if (!(options_.eps > 0) || !(options_.momentum >= 0 && options_.momentum <= 1))
      return invalid("BatchNorm2d with eps {} and momentum {}: eps must be positive, momentum within 0 and 1",
                     options_.eps, options_.momentum);
    channels_ = inputs[0][0];
    pixels_ = inputs[0][1] * inputs[0][2];
    return inputs[0];
  }
  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", {channels_}, constant(1)}, {"bias", {channels_}, constant(0)}};
  }
  std::vector<BufferSpec> buffers() const override {
    return {{"running_mean", {channels_}, 0}, {"running_var", {channels_}, 1}};
  }
  std::size_t saved_bytes(int /*batch*/) const override { return 3 * channel_bytes(); }
  std::size_t workspace_bytes(int batch) const override {
    int rows = is_joined() ? 1 + options_.group->world_size() : 0;
    if constexpr (kHasCuda) {
      const auto parts = [&](bool nhwc) {
        return cuda::batch_norm_parts({batch, channels_, pixels_, 0, 0, DType::kFloat32, nhwc});
      };
      rows += std::max(parts(false), parts(true));
    }
    return 3 * channel_bytes() * static_cast<std::size_t>(rows);
  }
  bool backward_reads_y() const override { return false; }

  void forward(const Frame& f) const override {
    const BatchNormSizes s = sizes_of(f);
    const float *weight = f.params[0], *bias = f.params[1];
    float *running_mean = f.buffers[0], *running_var = f.buffers[1];
    auto* const saved = reinterpret_cast<float*>(f.saved);
    const bool training = f.mode == Mode::kTraining, joins = training && is_joined();
    auto* const mine = reinterpret_cast<float*>(f.workspace);  // means, squares, counts
    const float* const gathered = joins ? mine + 3 * s.channels : nullptr;
    const int world = joins ? options_.group->world_size() : 1;
    if constexpr (kHasCuda) {
      if (f.stream != nullptr) {
        float* const parts = mine + (joins ? 3 * s.channels * (1 + world) : 0);
        const void* const x = f.x[0].data;
        if (training) {
          f.report_cuda(cuda::batch_norm_statistics(s, x, parts, joins ? mine : nullptr, f.stream),
                        "batch_norm2d statistics");
          if (joins) gather(f, mine);
          f.report_cuda(
              cuda::batch_norm_join(s, joins ? gathered : parts, joins ? world : cuda::batch_norm_parts(s),
                                    saved, running_mean, running_var, f.stream),
              "batch_norm2d statistics");
        }
        const float* const means = training ? saved : running_mean;
        const float* const spread = training ? saved + s.channels : running_var;
        return f.report_cuda(
            cuda::batch_norm_normalize(s, x, weight, bias, means, spread, !training, f.y.data, f.stream),
            "batch_norm2d");
      }
    }
    const float* const x = f.x[0].f32();
    float* const y = f.y.f32();
    const auto normalize = [&](int c, float mean, float inverse) {
      const float scale = weight[c] * inverse, shift = bias[c] - mean * scale;
      for_each_in(s, c, [=](std::size_t i) { y[i] = x[i] * scale + shift; });
    };
    const auto train = [&](int c, const ChannelStatistics& of) {
      const double squares = of.squares, count = of.count;
      const auto inverse = static_cast<float>(1 / std::sqrt(squares / count + static_cast<double>(s.eps)));
      running_mean[c] += s.momentum * (of.mean - running_mean[c]);
      // Of one value there is no unbiased variance; PyTorch refuses to train on it.
      const auto unbiased = static_cast<float>(squares / (count > 1 ? count - 1 : 1));
      running_var[c] += s.momentum * (unbiased - running_var[c]);
      saved[c] = of.mean;
      saved[s.channels + c] = inverse;
      saved[2 * s.channels + c] = of.count;
      normalize(c, of.mean, inverse);
    };
    const double count = static_cast<double>(s.batch) * s.pixels;
    for (int c = 0; c < s.channels; ++c) {
      if (!training) {
        normalize(c, running_mean[c], 1 / std::sqrt(running_var[c] + s.eps));
        continue;
      }
      const auto mean = static_cast<float>(channel_sum(s, c, [x](std::size_t i) { return x[i]; }) / count);
      const auto squares = static_cast<float>(
          channel_sum(s, c, [x, mean](std::size_t i) { return (x[i] - mean) * (x[i] - mean); }));
      if (!joins) {
        train(c, {mean, squares, static_cast<float>(count)});
        continue;
      }
      mine[c] = mean;
      mine[s.channels + c] = squares;
      mine[2 * s.channels + c] = static_cast<float>(count);
    }
    if (!joins) return;
    gather(f, mine);
    for (int c = 0; c < s.channels; ++c) train(c, joined(gathered, world, s.channels, c));
  }

  void backward(const Frame& f) const override {
    const BatchNormSizes s = sizes_of(f);
    const float* const weight = f.params[0];
    const auto* const saved = reinterpret_cast<const float*>(f.saved);
    auto* const sums = is_joined() ? reinterpret_cast<float*>(f.workspace) : nullptr;
    if constexpr (kHasCuda) {
      if (f.stream != nullptr) {
        float* const parts = reinterpret_cast<float*>(f.workspace) + (sums == nullptr ? 0 : 2 * s.channels);
        const float *products = f.grads[0], *totals = f.grads[1];
        const void *const x = f.x[0].data, *const dy = f.dy.data;
        f.report_cuda(cuda::batch_norm_gradients(s, x, saved, dy, parts, f.grads[0], f.grads[1], f.stream),
                      "batch_norm2d backward");
        if (sums != nullptr) {
          for (std::size_t k = 0; k < 2; ++k)
            f.device->copy_on_device(sums + k * static_cast<std::size_t>(s.channels), f.grads[k],
                                     channel_bytes());
          add_over_ranks(f, sums);
          products = sums;
          totals = sums + s.channels;
        }
        if (!f.dx[0]) return;
        return f.report_cuda(cuda::batch_norm_input_gradient(s, x, weight, saved, dy, products, totals,
                                                             f.dx[0].data, f.stream),
                             "batch_norm2d backward");
      }
    }
    const float *x = f.x[0].f32(), *dy = f.dy.f32();
    float* dx = f.dx[0].f32();
    const auto input_gradient = [&](int c, double product, double sum) {
      // dx = weight * inverse * (dy - sum / count - (x - mean) * inverse * product / count)
      const float mean = saved[c], inverse = saved[s.channels + c], scale = weight[c] * inverse;
      const double count = saved[2 * s.channels + c];
      const float slope = static_cast<float>(-scale * inverse * product / count);
      const float shift = static_cast<float>(-scale * sum / count);
      for_each_in(s, c, [=](std::size_t i) { dx[i] = scale * dy[i] + slope * (x[i] - mean) + shift; });
    };
    for (int c = 0; c < s.channels; ++c) {
      const float mean = saved[c], inverse = saved[s.channels + c];
      const double sum = channel_sum(s, c, [dy](std::size_t i) { return dy[i]; });
      const double product =
          channel_sum(s, c, [=](std::size_t i) { return dy[i] * (x[i] - mean); }) * inverse;
      f.grads[0][c] = static_cast<float>(product);
      f.grads[1][c] = static_cast<float>(sum);
      if (sums != nullptr) {
        sums[c] = f.grads[0][c];
        sums[s.channels + c] = f.grads[1][c];
      } else if (dx != nullptr) {
        input_gradient(c, product, sum);
      }
    }
    if (sums == nullptr) return;
    add_over_ranks(f, sums);
    if (dx == nullptr) return;
    for (int c = 0; c < s.channels; ++c) input_gradient(c, sums[c], sums[s.channels + c]);
  }

 private:
  bool is_joined() const { return options_.group != nullptr && options_.group->world_size() > 1; }
  std::size_t channel_bytes() const { return static_cast<std::size_t>(channels_) * sizeof(float); }
  /// A collective, ordered with the reductions of gradients: every rank has the same graph.
  void gather(const Frame& f, float* mine) const {
    const auto count = 3 * static_cast<std::size_t>(channels_);
    const auto world = static_cast<std::size_t>(options_.group->world_size());
    if (const auto done = options_.group->all_gather({mine, count, DType::kFloat32},
                                                     {mine + count, world * count, DType::kFloat32});
        !done)
      f.report(done.error());
  }
  void add_over_ranks(const Frame& f, float* sums) const {
    const Buffer buffer{sums, 2 * static_cast<std::size_t>(channels_), DType::kFloat32};
    if (const auto done = options_.group->all_reduce(buffer); !done) f.report(done.error());
  }
  BatchNormSizes sizes_of(const Frame& f) const {
    const Tensor& x = f.x[0];
    return {x.batch(),         x.channels(), x.height() * x.width(),   options_.eps,
            options_.momentum, x.dtype,      x.layout == Layout::kNHWC};
  }

  BatchNorm2dOptions options_;
  int channels_ = 0, pixels_ = 0;
};

}  // namespace

Value batch_norm2d(std::string name, Value x, const BatchNorm2dOptions& options) {
  return apply(std::move(name), std::make_unique<BatchNorm2d>(options), {x});
}

void synchronize_batch_norm(Operation& operation, ProcessGroup& group) {
  if (auto* const norm = dynamic_cast<BatchNorm2d*>(&operation); norm != nullptr) norm->synchronize(group);
}

}  // namespace muster::nn
