// SPDX-License-Identifier: Apache-2.0
// A small network trained with the kernels alone, on any device: gather, convolution, pool, two linear
// layers, loss, SGD. For tests that compare whole runs: captured with uncaptured, several ranks with one.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/support/kernel_cases.h"
#include "worker_runtime/optim/update.h"

namespace muster::testing {

class TinyTraining {
 public:
  static constexpr int kImages = 64, kBatch = 4, kClasses = 10;

  explicit TinyTraining(Kernels& kernels) : kernels_(kernels) {}

  Result<void> prepare() {
    MUSTER_OK(kernels_.plan_conv2d(conv_));
    MUSTER_OK(kernels_.plan_linear(hidden_));
    MUSTER_OK(kernels_.plan_linear(output_));
    const auto pixels = random_integers(kImages * 144, 256, 1),
               classes = random_integers(kImages, kClasses, 2);
    const std::vector<std::uint8_t> image_bytes(pixels.begin(), pixels.end()),
        label_bytes(classes.begin(), classes.end());
    MUSTER_TRY(images_, upload(image_bytes.data(), image_bytes.size()));
    MUSTER_TRY(labels_, upload(label_bytes.data(), label_bytes.size()));
    std::vector<float> initial = random_values(kParameters, 3);
    for (float& value : initial) value *= 0.1F;
    MUSTER_TRY(params_, upload(initial.data(), kParameters * sizeof(float)));
    MUSTER_TRY(grads_, kernels_.allocate(kParameters * sizeof(float)));
    MUSTER_TRY(velocity_, kernels_.allocate(kParameters * sizeof(float)));
    const std::array<std::pair<void**, std::size_t>, 12> buffers{{{&indices_, kBatch * 4},
                                                                  {&batch_labels_, kBatch * 4},
                                                                  {&x_, kBatch * 144 * 4},
                                                                  {&a_, kBatch * 6 * 64 * 4},
                                                                  {&pooled_, kBatch * 96 * 4},
                                                                  {&argmax_, kBatch * 96},
                                                                  {&h_, kBatch * 20 * 4},
                                                                  {&logits_, kBatch * kClasses * 4},
                                                                  {&dlogits_, kBatch * kClasses * 4},
                                                                  {&dh_, kBatch * 96 * 4},
                                                                  {&totals_, sizeof(LossTotals)},
                                                                  {&state_, sizeof(StepState)}}};
    for (const auto& [memory, bytes] : buffers) {
      MUSTER_TRY(*memory, kernels_.allocate(bytes));
    }
    MUSTER_TRY(dpooled_, kernels_.allocate(kBatch * 96 * 4));
    MUSTER_TRY(da_, kernels_.allocate(kBatch * 6 * 64 * 4));
    return {};
  }

  /// Which images the next step sees and whether it is the first: outside the step, whose addresses stay.
  void choose(int step, bool first) {
    const auto indices = random_integers(kBatch, kImages, 100 + static_cast<std::uint64_t>(step));
    kernels_.copy_to_device(indices_, indices.data(), indices.size() * 4);
    const StepState state{.lr = 0.01F, .momentum = 0.9F};
    kernels_.copy_to_device(state_, &state, sizeof state);
    if (first) kernels_.zero(velocity_, kParameters * sizeof(float));
  }

  /// Enqueues one step; `reduce` is called where gradients are there.
  Result<void> step(const std::function<Result<void>(float* grads, std::size_t count)>& reduce) {
    auto* p = f(params_);
    auto* g = f(grads_);
    kernels_.gather_normalize(static_cast<std::uint8_t*>(images_), static_cast<std::uint8_t*>(labels_),
                              static_cast<std::int32_t*>(indices_), kBatch, 144, 0.5F, 0.5F, f(x_),
                              static_cast<std::int32_t*>(batch_labels_));
    kernels_.conv2d_forward(conv_, f(x_), p, p + kConvBias, f(a_));
    kernels_.report_cuda(nn::max_pool_forward(pool_, f(a_), f(pooled_), static_cast<std::uint8_t*>(argmax_),
                                              kernels_.stream()),
                         "max_pool");
    kernels_.linear_forward(hidden_, f(pooled_), p + kHidden, p + kHiddenBias, f(h_), true);
    kernels_.linear_forward(output_, f(h_), p + kOutput, p + kOutputBias, f(logits_), false);
    kernels_.cross_entropy(
        {f(logits_), static_cast<std::int32_t*>(batch_labels_), kBatch, kClasses, f(dlogits_)},
        static_cast<LossTotals*>(totals_));
    kernels_.linear_backward(output_, f(h_), p + kOutput, f(logits_), f(dlogits_), f(dh_), g + kOutput,
                             g + kOutputBias, false);
    kernels_.linear_backward(hidden_, f(pooled_), p + kHidden, f(h_), f(dh_), f(dpooled_), g + kHidden,
                             g + kHiddenBias, true);
    kernels_.report_cuda(nn::max_pool_backward(pool_, f(dpooled_), static_cast<std::uint8_t*>(argmax_),
                                               f(da_), kernels_.stream()),
                         "max_pool backward");
    kernels_.conv2d_backward(conv_, f(x_), p, f(da_), nullptr, g, g + kConvBias);
    if (reduce) MUSTER_OK(reduce(g, kParameters));
    const SgdOptions sgd;
#ifdef MUSTER_HAS_CUDA
    if (void* const stream = kernels_.stream(); stream != nullptr) {
      kernels_.report_cuda(optim::cuda::sgd(sgd, state(), p, g, f(velocity_), kParameters, stream), "sgd");
      return {};
    }
#endif
    optim::sgd_update(sgd, *state(), p, g, f(velocity_), kParameters);
    return {};
  }

  Result<std::vector<float>> parameters() {
    std::vector<float> values(kParameters);
    kernels_.copy_to_host(values.data(), params_, kParameters * sizeof(float));
    MUSTER_OK(kernels_.synchronize());
    return values;
  }

 private:
  // Offsets in the arena of parameters: convolution 1->6 of 5x5, 96->20, 20->10. Not all are multiples of 16
  // bytes.
  static constexpr std::size_t kConvBias = 150, kHidden = 156, kHiddenBias = kHidden + 1920,
                               kOutput = kHiddenBias + 20, kOutputBias = kOutput + 200,
                               kParameters = kOutputBias + 10;

  static float* f(void* memory) {
    return static_cast<float*>(memory);
  }
  StepState* state() {
    return static_cast<StepState*>(state_);
  }

  Result<void*> upload(const void* data, std::size_t bytes) {
    MUSTER_TRY(void* memory, kernels_.allocate(bytes));
    kernels_.copy_to_device(memory, data, bytes);
    return memory;
  }

  Kernels& kernels_;
  const ConvShape conv_{
      .batch = kBatch, .in_channels = 1, .height = 12, .width = 12, .out_channels = 6, .kernel = 5};
  const nn::MaxPoolSizes pool_ = pool_sizes(kBatch * 6, 8, 8, 2);
  const LinearShape hidden_{kBatch, 96, 20}, output_{kBatch, 20, kClasses};
  void *images_ = nullptr, *labels_ = nullptr, *params_ = nullptr, *grads_ = nullptr, *velocity_ = nullptr;
  void *indices_ = nullptr, *batch_labels_ = nullptr, *x_ = nullptr, *a_ = nullptr, *pooled_ = nullptr,
       *argmax_ = nullptr, *h_ = nullptr, *logits_ = nullptr, *dlogits_ = nullptr, *dh_ = nullptr,
       *dpooled_ = nullptr, *da_ = nullptr, *totals_ = nullptr, *state_ = nullptr;
};

}  // namespace muster::testing
