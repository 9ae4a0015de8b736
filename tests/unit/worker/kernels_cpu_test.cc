// SPDX-License-Identifier: Apache-2.0
// The CPU's kernels against the reference within tolerances relative to the largest magnitude, for every
// instruction set this machine has, with buffers of exact length and with walls around them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <hwy/targets.h>

#include "tests/support/catch.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/optimizer_forms.h"
#include "tests/support/reference_kernels.h"
#include "tests/unit/worker/guarded.h"
#include "worker_runtime/device/device.h"

using namespace muster;
using namespace muster::testing;
using muster::test::Guarded;

namespace {

using Floats = std::vector<float>;

/// Runs `body` once for each instruction set the library was compiled for and this machine has.
template <class Body>
void on_every_target(const Body& body) {
  const std::int64_t here = hwy::SupportedTargets();
  // The scalar fallback is not part of the mask: a mask without a compiled target selects it.
  const std::vector<std::int64_t> targets{HWY_SCALAR, HWY_SSE4, HWY_AVX2, HWY_AVX3, HWY_NEON};
  for (const std::int64_t target : targets) {
    if (target != HWY_SCALAR && (here & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    INFO("target " << hwy::TargetName(target));
    body();
    hwy::SetSupportedTargetsForTest(0);
  }
}

Floats random_floats(std::mt19937& rng, std::int64_t count) {
  std::uniform_real_distribution<float> pick(-1, 1);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = pick(rng);
  return values;
}

/// Largest difference, relative to the largest magnitude of the expected tensor.
double difference(const Floats& actual, const Floats& expected) {
  double worst = 0, largest = 1e-30;
  REQUIRE(actual.size() == expected.size());
  for (std::size_t k = 0; k < actual.size(); ++k) {
    if (!std::isfinite(actual[k])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(static_cast<double>(actual[k]) - expected[k]));
    largest = std::max(largest, std::abs(static_cast<double>(expected[k])));
  }
  return worst / largest;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string describe(const ConvShape& s) {
  return std::to_string(s.batch) + "x" + std::to_string(s.in_channels) + "x" + std::to_string(s.height) +
         "x" + std::to_string(s.width) + " to " + std::to_string(s.out_channels) + ", kernel " +
         std::to_string(s.kernel) + " stride " + std::to_string(s.stride) + " padding " +
         std::to_string(s.padding);
}

void check_conv(const ConvShape& s) {
  INFO(describe(s));
  std::mt19937 rng(11);
  const std::size_t num_x = static_cast<std::size_t>(s.batch * s.in_channels * s.height * s.width);
  const std::size_t num_y =
      static_cast<std::size_t>(s.batch * s.out_channels * s.out_height() * s.out_width());
  const std::size_t num_w =
      static_cast<std::size_t>(s.out_channels * s.in_channels / s.groups * s.kernel * s.kernel);
  const std::size_t num_b = static_cast<std::size_t>(s.out_channels);
  const Floats x = random_floats(rng, static_cast<std::int64_t>(num_x));
  const Floats w = random_floats(rng, static_cast<std::int64_t>(num_w));
  const Floats b = random_floats(rng, s.out_channels),
               dy = random_floats(rng, static_cast<std::int64_t>(num_y));
  Floats y(num_y), dx(num_x), dw(num_w), db(num_b);
  const auto reference = make_reference_kernels();
  reference->conv2d_forward(s, x.data(), w.data(), b.data(), y.data());
  reference->conv2d_backward(s, x.data(), w.data(), dy.data(), dx.data(), dw.data(), db.data());
  on_every_target([&] {
    const auto kernels = make_cpu_kernels();
    REQUIRE_OK(kernels->plan_conv2d(s));
    Floats bits[5];
    for (const bool guard : {false, true}) {
      Guarded<float> gx(x, guard), gw(w, guard), gb(b, guard), gdy(dy, guard);
      Guarded<float> out_y(num_y, guard), out_dx(num_x, guard), out_dw(num_w, guard), out_db(num_b, guard);
      kernels->conv2d_forward(s, gx.data(), gw.data(), gb.data(), out_y.data());
      REQUIRE(difference(out_y.values(), y) < 1e-5);
      kernels->conv2d_backward(s, gx.data(), gw.data(), gdy.data(), nullptr, out_dw.data(), out_db.data());
      REQUIRE(difference(out_dw.values(), dw) < 1e-4);
      REQUIRE(difference(out_db.values(), db) < 1e-4);
      const Floats first_dw = out_dw.values();
      kernels->conv2d_backward(s, gx.data(), gw.data(), gdy.data(), out_dx.data(), out_dw.data(),
                               out_db.data());
      REQUIRE(difference(out_dx.values(), dx) < 1e-5);
      REQUIRE(same_bits(out_dw.values(), first_dw));
      REQUIRE((out_y.intact() && out_dx.intact() && out_dw.intact() && out_db.intact()));
      REQUIRE((gx.intact() && gw.intact() && gb.intact() && gdy.intact()));
      const Floats now[5] = {out_y.values(), out_dx.values(), out_dw.values(), out_db.values(), gdy.values()};
      // The same bits at another address.
      for (int k = 0; guard && k < 5; ++k) REQUIRE(same_bits(now[k], bits[k]));
      for (int k = 0; k < 5; ++k) bits[k] = now[k];
    }
  });
}

void check_linear(const LinearShape& s, bool relu) {
  INFO(s.batch << "x" << s.in_features << " to " << s.out_features << (relu ? " relu" : ""));
  std::mt19937 rng(12);
  const std::size_t num_b = static_cast<std::size_t>(s.out_features);
  const Floats x = random_floats(rng, std::int64_t{s.batch} * s.in_features);
  const Floats w = random_floats(rng, std::int64_t{s.out_features} * s.in_features);
  const Floats b = random_floats(rng, s.out_features);
  const Floats dy = random_floats(rng, std::int64_t{s.batch} * s.out_features);
  Floats y(dy.size()), masked = dy, dx(x.size()), dw(w.size()), db(num_b);
  const auto reference = make_reference_kernels();
  reference->linear_forward(s, x.data(), w.data(), b.data(), y.data(), relu);
  reference->linear_backward(s, x.data(), w.data(), y.data(), masked.data(), dx.data(), dw.data(), db.data(),
                             relu);
  on_every_target([&] {
    const auto kernels = make_cpu_kernels();
    REQUIRE_OK(kernels->plan_linear(s));
    Floats bits[4];
    for (const bool guard : {false, true}) {
      Guarded<float> gx(x, guard), gw(w, guard), gb(b, guard), gy(y, guard), gdy(dy, guard), again(dy, guard);
      Guarded<float> out_y(y.size(), guard), out_dx(x.size(), guard), out_dw(w.size(), guard),
          out_db(num_b, guard);
      kernels->linear_forward(s, gx.data(), gw.data(), gb.data(), out_y.data(), relu);
      REQUIRE(difference(out_y.values(), y) < 1e-5);
      // The reference's y, so that both mask the same elements.
      kernels->linear_backward(s, gx.data(), gw.data(), gy.data(), again.data(), nullptr, out_dw.data(),
                               out_db.data(), relu);
      REQUIRE(difference(out_dw.values(), dw) < 1e-4);
      kernels->linear_backward(s, gx.data(), gw.data(), gy.data(), gdy.data(), out_dx.data(), out_dw.data(),
                               out_db.data(), relu);
      REQUIRE(difference(out_dx.values(), dx) < 1e-5);
      REQUIRE(difference(out_dw.values(), dw) < 1e-4);
      REQUIRE(difference(out_db.values(), db) < 1e-4);
      REQUIRE(same_bits(gdy.values(), masked));
      REQUIRE((out_y.intact() && out_dx.intact() && out_dw.intact() && out_db.intact()));
      REQUIRE((gx.intact() && gw.intact() && gb.intact() && gy.intact() && gdy.intact()));
      const Floats now[4] = {out_y.values(), out_dx.values(), out_dw.values(), out_db.values()};
      for (int k = 0; guard && k < 4; ++k) REQUIRE(same_bits(now[k], bits[k]));
      for (int k = 0; k < 4; ++k) bits[k] = now[k];
    }
  });
}

}  // namespace

TEST_CASE("the CPU convolution equals the reference at the seed network's shapes and every batch remainder") {
  for (const int batch : {1, 2, 3, 4, 5, 9}) {
    check_conv({batch, 1, 28, 28, 6, 5, 1, 0});
    check_conv({batch, 6, 12, 12, 16, 5, 1, 0});
  }
  check_conv({64, 6, 12, 12, 16, 5, 1, 0});
}

TEST_CASE("the CPU convolution equals the reference at odd sizes, channels and both direct kernels") {
  for (const int kernel : {3, 5}) {
    for (const int width : {8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 33}) {
      check_conv({2, 2, 6 + kernel, width + kernel - 1, 5, kernel, 1, 0});
    }
    for (const int channels : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 18}) {
      check_conv({3, channels, kernel + 1, 14, 19 - channels, kernel, 1, 0});
    }
    check_conv({1, 1, kernel, kernel + 7, 1, kernel, 1, 0});
  }
}

TEST_CASE("the CPU convolution equals the reference with stride, padding, other kernels and many channels") {
  check_conv({2, 3, 9, 11, 4, 3, 1, 1});
  check_conv({2, 3, 9, 11, 4, 3, 2, 1});
  check_conv({3, 2, 12, 12, 5, 5, 1, 2});
  check_conv({2, 1, 8, 8, 3, 1, 1, 0});
  check_conv({1, 2, 15, 15, 3, 7, 2, 3});
  check_conv({2, 4, 4, 4, 6, 3, 1, 0});
  check_conv({2, 2, 6, 6, 3, 2, 1, 0});
  check_conv({2, 64, 10, 10, 64, 3, 1, 0});
  check_conv({2, 32, 14, 14, 32, 3, 1, 1});
  check_conv({2, 6, 12, 12, 9, 3, 1, 0, 3});
  check_conv({2, 16, 9, 9, 16, 3, 2, 1, 16});
}

TEST_CASE("the CPU convolution equals the reference where parts of the kernel, or all, meet padding alone") {
  check_conv({3, 20, 1, 1, 18, 3, 1, 1});
  check_conv({3, 20, 2, 2, 18, 3, 2, 1});
  check_conv({2, 4, 2, 1, 6, 5, 2, 2, 2});
  check_conv({2, 3, 1, 3, 4, 7, 1, 3});
  check_conv({2, 3, 1, 1, 4, 3, 6, 3});
}

TEST_CASE("the CPU linear layer equals the reference at the seed network's shapes and every batch size") {
  for (const int batch : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 64}) {
    check_linear({batch, 256, 120}, true);
    check_linear({batch, 120, 84}, true);
    check_linear({batch, 84, 10}, false);
  }
  check_linear({256, 120, 84}, true);
  check_linear({17, 784, 512}, true);
}

TEST_CASE("the CPU linear layer equals the reference at odd sizes") {
  for (const int batch : {1, 4, 6, 18, 33})
    for (const int in : {1, 3, 4, 5, 8, 15, 16, 17, 31, 33, 63})
      for (const int out : {1, 2, 3, 4, 5, 7, 9, 16, 17, 33, 47})
        check_linear({batch, in, out}, (in + out) % 2 == 0);
}

TEST_CASE("the CPU pooling gives the reference's bits at every width, window and remainder, NaN included") {
  for (const int window : {1, 2, 3, 4})
    for (int width = window; width < 36; ++width)
      for (const int height : {window, 2 * window, 3 * window + 1}) {
        const nn::MaxPoolSizes s = testing::pool_sizes(6, height, width, window);
        INFO(height << "x" << width << " window " << window);
        std::mt19937 rng(13);
        Floats x = random_floats(rng, std::int64_t{6} * height * width);
        for (float& value : x)
          if (rng() % 4 == 0) value = std::round(2 * value) / 2;  // equals and zeros
        if (width % 5 == 0) x[static_cast<std::size_t>(width) / 2] = std::numeric_limits<float>::quiet_NaN();
        const auto num_y = static_cast<std::size_t>(6 * (height / window) * (width / window));
        const Floats dy = random_floats(rng, static_cast<std::int64_t>(num_y));
        Floats y(num_y), dx(x.size());
        std::vector<std::uint8_t> argmax(num_y);
        for (std::size_t i = 0; i < num_y; ++i) {
          nn::MaxPoolForward<float>{s, x.data(), y.data(), argmax.data()}.at<1>(static_cast<std::int64_t>(i));
          const int at = static_cast<int>(i), row = at / s.out_width % s.out_height,
                    column = at % s.out_width;
          if (const int place = argmax[i]; place != nn::kNoWinner)
            dx[static_cast<std::size_t>(
                (at / (s.out_height * s.out_width) * height + row * window + place / window) * width +
                column * window + place % window)] = dy[i];
        }
        on_every_target([&] {
          for (const bool guard : {false, true}) {
            Guarded<float> gx(x, guard), gdy(dy, guard), out_y(num_y, guard), out_dx(x.size(), guard);
            Guarded<std::uint8_t> out_argmax(num_y, guard);
            (void)nn::max_pool_forward(s, gx.data(), out_y.data(), out_argmax.data(), nullptr);
            (void)nn::max_pool_backward(s, gdy.data(), out_argmax.data(), out_dx.data(), nullptr);
            REQUIRE(same_bits(out_y.values(), y));
            REQUIRE(out_argmax.values() == argmax);
            REQUIRE(same_bits(out_dx.values(), dx));
            REQUIRE((out_y.intact() && out_argmax.intact() && out_dx.intact()));
          }
        });
      }
}

TEST_CASE("the CPU pooling gives the reference's bits with padding, also where a window is all padding") {
  for (const auto& [kernel, stride, padding] : {std::array{3, 2, 1}, std::array{2, 2, 1}, std::array{3, 1, 1},
                                                std::array{5, 3, 2}, std::array{7, 4, 3}})
    for (const int width : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 127, 128, 129, 130, 257}) {
      if (width + 2 * padding < kernel) continue;
      const int out = (width + 2 * padding - kernel) / stride + 1;
      const nn::MaxPoolSizes s{2, width, width, out, out, kernel, stride, padding};
      INFO(width << " kernel " << kernel << " stride " << stride << " padding " << padding);
      std::mt19937 rng(13);
      const Floats x = random_floats(rng, std::int64_t{2} * width * width);
      const auto num_y = static_cast<std::size_t>(2 * out * out);
      Floats y(num_y);
      std::vector<std::uint8_t> argmax(num_y);
      for (std::size_t i = 0; i < num_y; ++i)
        nn::MaxPoolForward<float>{s, x.data(), y.data(), argmax.data()}.at<1>(static_cast<std::int64_t>(i));
      for (const bool guard : {false, true}) {
        Guarded<float> gx(x, guard), gdy(y, guard), out_y(num_y, guard), out_dx(x.size(), guard);
        Guarded<std::uint8_t> out_argmax(num_y, guard);
        (void)nn::max_pool_forward(s, gx.data(), out_y.data(), out_argmax.data(), nullptr);
        (void)nn::max_pool_backward(s, gdy.data(), out_argmax.data(), out_dx.data(), nullptr);
        REQUIRE(same_bits(out_y.values(), y));
        REQUIRE(out_argmax.values() == argmax);
        REQUIRE((out_y.intact() && out_argmax.intact() && out_dx.intact()));
      }
    }
}

TEST_CASE(
    "the CPU cross-entropy equals the reference for few and many classes, confident and wrong answers") {
  const auto reference = make_reference_kernels();
  for (const int classes : {1, 2, 3, 7, 8, 9, 10, 16, 17, 100, 1000})
    for (const int batch : {1, 4, 5, 64})
      for (const float spread : {0.0F, 1.0F, 30.0F, 200.0F}) {
        INFO(classes << " classes, batch " << batch << ", spread " << spread);
        std::mt19937 rng(14);
        Floats logits = random_floats(rng, std::int64_t{batch} * classes);
        std::vector<std::int32_t> labels;
        for (float& value : logits) value *= spread;
        for (int n = 0; n < batch; ++n)
          labels.push_back(static_cast<std::int32_t>(rng() % static_cast<unsigned>(classes)));
        Floats dlogits(logits.size());
        LossTotals totals;
        reference->cross_entropy({logits.data(), labels.data(), batch, classes, dlogits.data()}, &totals);
        on_every_target([&] {
          const auto kernels = make_cpu_kernels();
          for (const bool guard : {false, true}) {
            Guarded<float> in(logits, guard), out(logits.size(), guard);
            LossTotals mine;
            kernels->cross_entropy({in.data(), labels.data(), batch, classes, out.data()}, &mine);
            REQUIRE(difference(out.values(), dlogits) < 1e-6);
            REQUIRE(std::abs(mine.loss_sum - totals.loss_sum) <= 1e-6 * std::abs(totals.loss_sum));
            REQUIRE(mine.correct == totals.correct);
            REQUIRE(mine.correct5 == totals.correct5);
            REQUIRE(out.intact());
            const double once = mine.loss_sum;
            kernels->cross_entropy({in.data(), labels.data(), batch, classes, nullptr}, &mine);
            REQUIRE(mine.loss_sum == once + once);
            REQUIRE(mine.num_samples == 2 * batch);
          }
        });
      }
}

TEST_CASE("a NaN logit makes the CPU's loss NaN and stays inside its row") {
  on_every_target([] {
    for (const int classes : {5, 10, 17})
      for (int at = 0; at < classes; ++at) {
        Floats logits(static_cast<std::size_t>(2 * classes), 0.5F), dlogits(logits.size());
        logits[static_cast<std::size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
        const std::int32_t labels[2] = {1, 1};
        LossTotals totals;
        make_cpu_kernels()->cross_entropy({logits.data(), labels, 2, classes, dlogits.data()}, &totals);
        REQUIRE(std::isnan(totals.loss_sum));
        REQUIRE(std::isfinite(dlogits[static_cast<std::size_t>(classes)]));
      }
  });
}

TEST_CASE("the CPU gather_normalize equals the reference for every image size") {
  const auto reference = make_reference_kernels();
  for (const int elements : {1, 3, 4, 15, 16, 17, 33, 784, 785}) {
    std::mt19937 rng(15);
    std::vector<std::uint8_t> images(static_cast<std::size_t>(9 * elements)), labels(9);
    for (auto& value : images) value = static_cast<std::uint8_t>(rng());
    for (auto& value : labels) value = static_cast<std::uint8_t>(rng() % 10);
    const std::vector<std::int32_t> indices{8, 0, 8, 3, 1};
    Floats x(static_cast<std::size_t>(5 * elements));
    std::vector<std::int32_t> picked(5);
    reference->gather_normalize(images.data(), labels.data(), indices.data(), 5, elements, 0.2860F, 0.3530F,
                                x.data(), picked.data());
    on_every_target([&] {
      for (const bool guard : {false, true}) {
        Guarded<std::uint8_t> in(images, guard);
        Guarded<float> out(x.size(), guard);
        Guarded<std::int32_t> out_labels(5, guard);
        make_cpu_kernels()->gather_normalize(in.data(), labels.data(), indices.data(), 5, elements, 0.2860F,
                                             0.3530F, out.data(), out_labels.data());
        REQUIRE(difference(out.values(), x) < 1e-6);
        REQUIRE(out_labels.values() == picked);
        REQUIRE((out.intact() && out_labels.intact()));
      }
    });
  }
}

TEST_CASE(
    "vectors give an optimizer the bits of single elements on every instruction set, and touch no more") {
  for (const std::size_t count : {1U, 4U, 15U, 16U, 17U, 1000U}) {
    std::mt19937 rng(16);
    const Floats start = random_floats(rng, static_cast<std::int64_t>(count));
    const Floats grads = random_floats(rng, static_cast<std::int64_t>(count));
    for (const float factor : {1.0F, 1.0F / 3}) {
      for (const SgdOptions options : {SgdOptions{0.001F, 0.9F, 0.0F}, SgdOptions{0.1F, 0.9F, 5e-4F},
                                       SgdOptions{0.3F, 0.0F, 0.0F}, SgdOptions{0.1F, 0.9F, 5e-4F, true}}) {
        const StepState state{.lr = options.lr, .momentum = options.momentum, .factor = factor};
        Floats p = start, v(count, 0.0F);
        for (int step = 0; step < 3; ++step)
          testing::sgd_elements(options, state, p.data(), grads.data(), v.data(), count);
        on_every_target([&] {
          Guarded<float> out_p(start, true), out_v(count, true);
          std::fill_n(out_v.data(), count, 0.0F);
          for (int step = 0; step < 3; ++step)
            optim::sgd_update(options, state, out_p.data(), grads.data(), out_v.data(), count);
          REQUIRE(same_bits(out_p.values(), p));
          REQUIRE(same_bits(out_v.values(), v));
          REQUIRE((out_p.intact() && out_v.intact()));
        });
      }
      const AdamWOptions options;
      Floats p = start, m(count, 0.0F), v(count, 0.0F);
      const auto state = [&](int step) {
        return StepState{.lr = 0.01F, .momentum = 0.9F, .factor = factor, .steps = step};
      };
      for (const int step : {1, 2, 3})
        testing::adamw_elements(options, state(step), p.data(), grads.data(), m.data(), v.data(), count);
      on_every_target([&] {
        Guarded<float> out_p(start, true), out_m(count, true), out_v(count, true);
        std::fill_n(out_m.data(), count, 0.0F);
        std::fill_n(out_v.data(), count, 0.0F);
        for (const int step : {1, 2, 3})
          optim::adamw_update(options, state(step), out_p.data(), grads.data(), out_m.data(), out_v.data(),
                              count);
        REQUIRE(same_bits(out_p.values(), p));
        REQUIRE(same_bits(out_m.values(), m));
        REQUIRE(same_bits(out_v.values(), v));
        REQUIRE((out_p.intact() && out_m.intact() && out_v.intact()));
      });
    }
  }
}

TEST_CASE("the CPU's kernels say which instructions they use") {
  on_every_target(
      [] { REQUIRE(std::string(make_compute(DeviceType::kCpu).value()->name()).rfind("cpu (", 0) == 0); });
  hwy::SetSupportedTargetsForTest(HWY_SCALAR);
  REQUIRE(make_compute(DeviceType::kCpu).value()->name() == "cpu (portable)");
  hwy::SetSupportedTargetsForTest(0);
  REQUIRE(make_compute(DeviceType::kCpu).value()->type() == DeviceType::kCpu);
}
