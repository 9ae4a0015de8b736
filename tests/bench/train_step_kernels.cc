// SPDX-License-Identifier: Apache-2.0
// Times each kernel of the GarmentClassifier's training step, and the whole step as a sequence of Kernels
// calls, on one thread. Usage: train_step_kernels [--reference] [batch ...]; default 4 64 256.
// tests/bench/train_step_torch.py is the same step in PyTorch. Each line is microseconds of this thread's CPU
// time per call, median and best over windows of some milliseconds: nothing waits in a step, so on an idle
// core that is the wall time, and on a shared machine it stays comparable.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <time.h>
#include <vector>

#include "tests/support/reference_kernels.h"
#include "worker_runtime/kernels/kernels.h"
#include "worker_runtime/ops/max_pool/max_pool.h"
#include "worker_runtime/optim/update.h"

using namespace muster;
using namespace muster::kernels;

namespace {

/// CPU time of this thread in microseconds.
double cpu_us() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

template <class T>
T* take(Kernels& kernels, std::size_t count) {
  auto memory = kernels.allocate(count * sizeof(T));
  if (!memory) {
    std::fprintf(stderr, "train_step_kernels: %s\n", memory.error().message.c_str());
    std::exit(1);
  }
  return static_cast<T*>(*memory);
}

void require(const Result<void>& result) {
  if (result) return;
  std::fprintf(stderr, "train_step_kernels: %s\n", result.error().message.c_str());
  std::exit(1);
}

/// The network with all its memory; parameters, gradients and velocity are each one block, as in training.
class Step {
 public:
  static constexpr int kImages = 4096, kPixels = 28 * 28;
  static constexpr std::size_t kParameters = 44426;

  Step(Kernels& kernels, int batch)
      : k_(kernels),
        conv1_{batch, 1, 28, 28, 6, 5, 1, 0},
        conv2_{batch, 6, 12, 12, 16, 5, 1, 0},
        pool1_{{batch * 6, 24, 24, 12, 12, 2, 2, 0}, true},
        pool2_{{batch * 16, 8, 8, 4, 4, 2, 2, 0}, true},
        fc1_{batch, 256, 120},
        fc2_{batch, 120, 84},
        fc3_{batch, 84, 10},
        batch_(batch) {
    const auto n = static_cast<std::size_t>(batch);
    for (const ConvShape& shape : {conv1_, conv2_}) require(k_.plan_conv2d(shape));
    for (const LinearShape& shape : {fc1_, fc2_, fc3_}) require(k_.plan_linear(shape));
    images_ = take<std::uint8_t>(k_, std::size_t{kImages} * kPixels);
    labels_ = take<std::uint8_t>(k_, kImages);
    indices_ = take<std::int32_t>(k_, kImages);
    picked_ = take<std::int32_t>(k_, n);
    params_ = take<float>(k_, kParameters);
    grads_ = take<float>(k_, kParameters);
    velocity_ = take<float>(k_, kParameters);
    x_ = take<float>(k_, n * kPixels);
    c1_ = take<float>(k_, n * 6 * 576), dc1_ = take<float>(k_, n * 6 * 576);
    p1_ = take<float>(k_, n * 6 * 144), dp1_ = take<float>(k_, n * 6 * 144);
    a1_ = take<std::uint8_t>(k_, n * 6 * 144);
    c2_ = take<float>(k_, n * 16 * 64), dc2_ = take<float>(k_, n * 16 * 64);
    p2_ = take<float>(k_, n * 256), dp2_ = take<float>(k_, n * 256);
    a2_ = take<std::uint8_t>(k_, n * 256);
    h1_ = take<float>(k_, n * 120), dh1_ = take<float>(k_, n * 120);
    h2_ = take<float>(k_, n * 84), dh2_ = take<float>(k_, n * 84);
    y_ = take<float>(k_, n * 10), dy_ = take<float>(k_, n * 10);
    totals_ = take<LossTotals>(k_, 1);
    std::mt19937 rng(7);
    for (int i = 0; i < kImages * kPixels; ++i) images_[i] = static_cast<std::uint8_t>(rng() >> 24);
    for (int i = 0; i < kImages; ++i) {
      labels_[i] = static_cast<std::uint8_t>(rng() % 10);
      indices_[i] = static_cast<std::int32_t>(rng() % kImages);
    }
    std::uniform_real_distribution<float> weight(-0.1F, 0.1F);
    for (std::size_t i = 0; i < kParameters; ++i) params_[i] = weight(rng);
    w1_ = 0, b1_ = 150, w2_ = 156, b2_ = 2556, w3_ = 2572, b3_ = 33292, w4_ = 33412, b4_ = 43492, w5_ = 43576,
    b5_ = 44416;
  }

  struct Part {
    std::string name;
    std::function<void()> run;
  };

  std::vector<Part> parts() {
    float *p = params_, *g = grads_;
    return {
        {"gather_normalize",
         [this] {
           cursor_ = cursor_ + batch_ > kImages - batch_ ? 0 : cursor_ + batch_;
           k_.gather_normalize(images_, labels_, indices_ + cursor_, batch_, kPixels, 0.5F, 0.5F, x_,
                               picked_);
         }},
        {"conv1 forward", [=, this] { k_.conv2d_forward(conv1_, x_, p + w1_, p + b1_, c1_); }},
        {"pool1 forward", [this] { nn::max_pool_forward(pool1_, c1_, p1_, a1_, nullptr); }},
        {"conv2 forward", [=, this] { k_.conv2d_forward(conv2_, p1_, p + w2_, p + b2_, c2_); }},
        {"pool2 forward", [this] { nn::max_pool_forward(pool2_, c2_, p2_, a2_, nullptr); }},
        {"fc1 forward", [=, this] { k_.linear_forward(fc1_, p2_, p + w3_, p + b3_, h1_, true); }},
        {"fc2 forward", [=, this] { k_.linear_forward(fc2_, h1_, p + w4_, p + b4_, h2_, true); }},
        {"fc3 forward", [=, this] { k_.linear_forward(fc3_, h2_, p + w5_, p + b5_, y_, false); }},
        {"cross_entropy", [this] { k_.cross_entropy(y_, picked_, batch_, 10, dy_, totals_, {}); }},
        {"fc3 backward",
         [=, this] { k_.linear_backward(fc3_, h2_, p + w5_, y_, dy_, dh2_, g + w5_, g + b5_, false); }},
        {"fc2 backward",
         [=, this] { k_.linear_backward(fc2_, h1_, p + w4_, h2_, dh2_, dh1_, g + w4_, g + b4_, true); }},
        {"fc1 backward",
         [=, this] { k_.linear_backward(fc1_, p2_, p + w3_, h1_, dh1_, dp2_, g + w3_, g + b3_, true); }},
        {"pool2 backward", [this] { nn::max_pool_backward(pool2_, dp2_, a2_, dc2_, nullptr); }},
        {"conv2 backward",
         [=, this] { k_.conv2d_backward(conv2_, p1_, p + w2_, dc2_, dp1_, g + w2_, g + b2_); }},
        {"pool1 backward", [this] { nn::max_pool_backward(pool1_, dp1_, a1_, dc1_, nullptr); }},
        {"conv1 backward",
         [=, this] { k_.conv2d_backward(conv1_, x_, p + w1_, dc1_, nullptr, g + w1_, g + b1_); }},
        {"sgd", [=, this] { optim::sgd_update({}, state_, p, g, velocity_, kParameters); }},
    };
  }

  [[nodiscard]] double mean_loss() const {
    return totals_->loss_sum / static_cast<double>(totals_->num_samples);
  }

 private:
  Kernels& k_;
  ConvShape conv1_, conv2_;
  nn::MaxPoolSizes pool1_, pool2_;
  LinearShape fc1_, fc2_, fc3_;
  int batch_, cursor_ = 0;
  StepState state_{.lr = 0.001F, .momentum = 0.9F};
  std::size_t w1_, b1_, w2_, b2_, w3_, b3_, w4_, b4_, w5_, b5_;
  std::uint8_t *images_, *labels_, *a1_, *a2_;
  std::int32_t *indices_, *picked_;
  float *params_, *grads_, *velocity_, *x_, *c1_, *dc1_, *p1_, *dp1_, *c2_, *dc2_, *p2_, *dp2_, *h1_, *dh1_,
      *h2_, *dh2_, *y_, *dy_;
  LossTotals* totals_;
};

struct Timing {
  double median = 0, best = 0;
};

/// Microseconds per call, from windows of about 2 ms for half a second.
Timing time_calls(const std::function<void()>& call) {
  const auto window = [&](int calls) {
    const double start = cpu_us();
    for (int i = 0; i < calls; ++i) call();
    return (cpu_us() - start) / calls;
  };
  window(3);
  const int calls = std::max(1, static_cast<int>(2000 / window(3)));
  std::vector<double> times;
  const double end = cpu_us() + 5e5;
  while (cpu_us() < end) times.push_back(window(calls));
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> batches;
  bool reference = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--reference")
      reference = true;
    else
      batches.push_back(std::atoi(argv[i]));
  }
  if (batches.empty()) batches = {4, 64, 256};
  for (const int batch : batches) {
    if (batch < 1 || batch > Step::kImages / 2) {
      std::fprintf(
          stderr,
          "train_step_kernels: a batch is 1 to %d; usage: train_step_kernels [--reference] [batch ...]\n",
          Step::kImages / 2);
      return 2;
    }
    const std::unique_ptr<Kernels> kernels = reference ? make_reference_kernels() : make_cpu_kernels();
    Step step(*kernels, batch);
    const std::vector<Step::Part> parts = step.parts();
    const auto whole = [&] {
      for (const Step::Part& part : parts) part.run();
    };
    std::printf("%s, batch %d\n", std::string(kernels->name()).c_str(), batch);
    // The whole step first, while the parameters are those of training; alone, sgd runs off with one
    // gradient.
    const Timing t = time_calls(whole);
    const double loss = step.mean_loss();
    double sum = 0;
    for (const Step::Part& part : parts) {
      const Timing alone = time_calls(part.run);
      sum += alone.median;
      std::printf("  %-18s median %9.2f us  best %9.2f us\n", part.name.c_str(), alone.median, alone.best);
    }
    std::printf("  %-18s median %9.2f us  best %9.2f us  (parts add up to %.2f; mean loss %.4f)\n",
                "whole step", t.median, t.best, sum, loss);
  }
  return 0;
}
