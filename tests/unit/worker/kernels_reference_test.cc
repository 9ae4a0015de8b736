// SPDX-License-Identifier: Apache-2.0
// The reference kernels against mathematics: finite differences of a random linear function of the output,
// and small cases computed by hand. Everything else is tested against the reference.
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/reference_kernels.h"
#include "worker_runtime/device/device.h"

using namespace muster;
using namespace muster::testing;

namespace {

using Floats = std::vector<float>;

Floats random_floats(std::mt19937& rng, int count, float low = -1, float high = 1) {
  std::uniform_real_distribution<float> pick(low, high);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = pick(rng);
  return values;
}

double dot(const Floats& a, const Floats& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

/// Largest difference between `gradient` and central differences of `loss` in each element of `at`. The
/// functions are linear in each argument, so the step may be as large as 1/8 and rounding stays small.
double worst_gradient_error(Floats& at, const Floats& gradient, const std::function<double()>& loss,
                            float step = 0.125F) {
  double worst = 0;
  for (std::size_t k = 0; k < at.size(); ++k) {
    const float kept = at[k];
    at[k] = kept + step;
    const double above = loss();
    at[k] = kept - step;
    const double below = loss();
    at[k] = kept;
    worst = std::max(worst, std::abs((above - below) / (2.0 * static_cast<double>(step)) - gradient[k]));
  }
  return worst;
}

}  // namespace

TEST_CASE("the reference convolution's gradients are its finite differences, with stride and padding") {
  const auto kernels = make_reference_kernels();
  for (const ConvShape s : {ConvShape{2, 2, 6, 5, 3, 3, 1, 0}, ConvShape{1, 1, 7, 7, 2, 5, 1, 2},
                            ConvShape{2, 2, 7, 6, 2, 3, 2, 1}}) {
    std::mt19937 rng(1);
    REQUIRE_OK(kernels->plan_conv2d(s));
    const int num_y = s.batch * s.out_channels * s.out_height() * s.out_width();
    Floats x = random_floats(rng, s.batch * s.in_channels * s.height * s.width);
    Floats w = random_floats(rng, s.out_channels * s.in_channels * s.kernel * s.kernel);
    Floats b = random_floats(rng, s.out_channels);
    Floats dy = random_floats(rng, num_y);
    Floats y(dy.size()), dx(x.size(), 7.0F), dw(w.size(), 7.0F), db(b.size(), 7.0F);
    kernels->conv2d_backward(s, x.data(), w.data(), dy.data(), dx.data(), dw.data(), db.data());
    const auto loss = [&] {
      kernels->conv2d_forward(s, x.data(), w.data(), b.data(), y.data());
      return dot(y, dy);
    };
    REQUIRE(worst_gradient_error(x, dx, loss) < 1e-4);
    REQUIRE(worst_gradient_error(w, dw, loss) < 1e-4);
    REQUIRE(worst_gradient_error(b, db, loss) < 1e-4);
  }
}

TEST_CASE("the reference convolution computes a case done by hand") {
  const auto kernels = make_reference_kernels();
  const ConvShape s{1, 1, 3, 3, 1, 2, 1, 0};
  const Floats x{1, 2, 3, 4, 5, 6, 7, 8, 9}, w{1, 0, 0, -1}, b{10};
  Floats y(4);
  kernels->conv2d_forward(s, x.data(), w.data(), b.data(), y.data());
  REQUIRE(y == Floats{6, 6, 6, 6});
}

TEST_CASE("the reference linear layer's gradients are its finite differences, with and without relu") {
  const auto kernels = make_reference_kernels();
  const LinearShape s{3, 5, 4};
  for (const bool relu : {false, true}) {
    std::mt19937 rng(2);
    Floats x = random_floats(rng, s.batch * s.in_features),
           w = random_floats(rng, s.out_features * s.in_features);
    Floats b = random_floats(rng, s.out_features), y(static_cast<std::size_t>(s.batch * s.out_features));
    const Floats dy = random_floats(rng, s.batch * s.out_features);
    const auto loss = [&] {
      kernels->linear_forward(s, x.data(), w.data(), b.data(), y.data(), relu);
      return dot(y, dy);
    };
    loss();
    Floats masked = dy, dx(x.size(), 7.0F), dw(w.size(), 7.0F), db(b.size(), 7.0F);
    kernels->linear_backward(s, x.data(), w.data(), y.data(), masked.data(), dx.data(), dw.data(), db.data(),
                             relu);
    // A step small enough that no output crosses zero here; rounding then limits the accuracy.
    const float step = 1.0F / 512;
    REQUIRE(worst_gradient_error(x, dx, loss, step) < 2e-3);
    REQUIRE(worst_gradient_error(w, dw, loss, step) < 2e-3);
    REQUIRE(worst_gradient_error(b, db, loss, step) < 2e-3);
  }
}

TEST_CASE(
    "the reference pooling takes the first of equals, nothing where nothing is positive, and a NaN "
    "anywhere") {
  const nn::MaxPoolSizes s = testing::pool_sizes(1, 3, 8, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats x{1, 2, -1, -2, 3, 3, 5, nan,  //
                 2, 0, -3, 0,  3, 3, 6, 4,    //
                 9, 9, 9,  9,  9, 9, 9, 9};   // the remainder row is ignored
  Floats y(4);
  std::vector<std::uint8_t> argmax(4);
  for (int i = 0; i < 4; ++i) nn::MaxPoolForward<float>{s, x.data(), y.data(), argmax.data()}.at<1>(i);
  REQUIRE(y[0] == 2);
  REQUIRE(y[1] == 0);
  REQUIRE(y[2] == 3);
  REQUIRE(std::isnan(y[3]));
  REQUIRE(argmax == std::vector<std::uint8_t>{1, 255, 0, 1});
}

TEST_CASE("the reference pooling sends the gradient to the winners and zero elsewhere") {
  const nn::MaxPoolSizes s = testing::pool_sizes(1, 3, 5, 2);
  const Floats dy{10, 20};
  const std::vector<std::uint8_t> argmax{3, 255};
  Floats dx(15, 7.0F);
  (void)nn::max_pool_backward(s, dy.data(), argmax.data(), dx.data(), nullptr);
  Floats expected(15, 0.0F);
  expected[6] = 10;
  REQUIRE(dx == expected);
}

TEST_CASE("the reference cross-entropy's gradient is its finite difference and its totals add up") {
  const auto kernels = make_reference_kernels();
  std::mt19937 rng(4);
  const int batch = 3, classes = 5;
  Floats logits = random_floats(rng, batch * classes, -3, 3), dlogits(logits.size());
  const std::vector<std::int32_t> labels{0, 4, 2};
  LossTotals totals;
  kernels->cross_entropy({logits.data(), labels.data(), batch, classes, dlogits.data()}, &totals);
  const double once = totals.loss_sum;
  kernels->cross_entropy({logits.data(), labels.data(), batch, classes, nullptr}, &totals);
  REQUIRE(totals.loss_sum == 2 * once);
  REQUIRE(totals.num_samples == 6);
  const auto loss = [&] {
    LossTotals one;
    kernels->cross_entropy({logits.data(), labels.data(), batch, classes, nullptr}, &one);
    return one.loss_sum / batch;
  };
  REQUIRE(worst_gradient_error(logits, dlogits, loss, 1.0F / 256) < 1e-5);
}

TEST_CASE("the reference cross-entropy of equal logits is the logarithm of the number of classes") {
  const auto kernels = make_reference_kernels();
  const Floats logits(4, 100.0F);
  const std::vector<std::int32_t> labels{0};
  LossTotals totals;
  Floats dlogits(4);
  kernels->cross_entropy({logits.data(), labels.data(), 1, 4, dlogits.data()}, &totals);
  REQUIRE(std::abs(totals.loss_sum - std::log(4.0)) < 1e-12);
  REQUIRE(totals.correct == 1);  // the first of equals
  REQUIRE(dlogits == Floats{-0.75F, 0.25F, 0.25F, 0.25F});
}

TEST_CASE("gather_normalize picks the indexed images and labels") {
  const auto kernels = make_reference_kernels();
  const std::vector<std::uint8_t> images{0, 255, 51, 102, 204, 255}, labels{7, 8, 9};
  const std::vector<std::int32_t> indices{2, 0};
  Floats x(4);
  std::vector<std::int32_t> picked(2);
  kernels->gather_normalize(images.data(), labels.data(), indices.data(), 2, 2, 0.5F, 0.5F, x.data(),
                            picked.data());
  REQUIRE(picked == std::vector<std::int32_t>{9, 7});
  REQUIRE(x == Floats{0.6F, 1.0F, -1.0F, 1.0F});
}

TEST_CASE("shapes with a tensor of more than 2^31 elements are refused") {
  for (const auto& kernels : {make_reference_kernels(), make_cpu_kernels()}) {
    REQUIRE(kernels->plan_conv2d({4, 1, 40000, 40000, 6, 5, 1, 0}).error().code == ErrorCode::kUnsupported);
    REQUIRE(kernels->plan_linear({4, 100000, 100000}).error().code == ErrorCode::kUnsupported);
  }
}

TEST_CASE("memory from a kernels object is zeroed, aligned and survives a round trip") {
  for (const auto& kernels : {make_reference_kernels(), make_cpu_kernels()}) {
    const auto memory = kernels->allocate(100);
    REQUIRE_OK(memory);
    REQUIRE(reinterpret_cast<std::uintptr_t>(*memory) % 256 == 0);
    std::vector<char> host(100, 'x'), zeroed(100, '\0');
    kernels->copy_to_host(host.data(), *memory, 100);
    REQUIRE(host == zeroed);
    host.assign(100, 'y');
    kernels->copy_to_device(*memory, host.data(), 100);
    std::vector<char> back(100);
    kernels->copy_to_host(back.data(), *memory, 100);
    REQUIRE(back == host);
    kernels->zero(*memory, 100);
    kernels->copy_to_host(back.data(), *memory, 100);
    REQUIRE(back == zeroed);
    REQUIRE_OK(kernels->synchronize());
  }
}

TEST_CASE("memory that cannot be had is an error that names its size") {
  const auto refused = make_cpu_kernels()->allocate(std::size_t{1} << 60);
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().code == ErrorCode::kExhausted);
  REQUIRE(refused.error().message.find("1152921504606846976") != std::string::npos);
}
