// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kernels_agreement.h"

#include <cstring>
#include <limits>
#include <memory>

#include <muster/optim.h>

#include "tests/support/catch.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/reference_kernels.h"

namespace muster::testing {
namespace {

/// A copy of host values in the subject's memory.
template <class T>
T* upload(Kernels& subject, const std::vector<T>& values) {
  const auto memory = subject.allocate(values.size() * sizeof(T) + 1);
  REQUIRE_OK(memory);
  subject.copy_to_device(*memory, values.data(), values.size() * sizeof(T));
  return static_cast<T*>(*memory);
}

template <class T>
std::vector<T> download(Kernels& subject, const T* values, std::size_t count) {
  std::vector<T> host(count);
  subject.copy_to_host(host.data(), values, count * sizeof(T));
  REQUIRE_OK(subject.synchronize());
  return host;
}

float* output(Kernels& subject, std::size_t count) {
  return upload(subject, std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()));
}

std::size_t elements(int a, int b, int c = 1, int d = 1) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c) *
         static_cast<std::size_t>(d);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

void check_gather_normalize(Kernels& subject) {
  const auto reference = make_reference_kernels();
  for (const auto& [batch, image_elements] : {std::pair{4, 784}, {1, 1}, {7, 3}, {300, 5}, {64, 784}}) {
    INFO("batch " << batch << ", " << image_elements << " elements");
    const int n = 100;
    std::vector<std::uint8_t> images(elements(n, image_elements)), labels(elements(n, 1));
    const auto random = random_integers(images.size(), 256, 1);
    std::copy(random.begin(), random.end(), images.begin());
    const auto random_labels = random_integers(labels.size(), 10, 2);
    std::copy(random_labels.begin(), random_labels.end(), labels.begin());
    const auto indices = random_integers(elements(batch, 1), n, 3);
    std::vector<float> expected(elements(batch, image_elements));
    std::vector<std::int32_t> expected_labels(elements(batch, 1));
    reference->gather_normalize(images.data(), labels.data(), indices.data(), batch, image_elements, 0.5F,
                                0.25F, expected.data(), expected_labels.data());
    float* x = output(subject, expected.size());
    auto* out_labels = upload(subject, std::vector<std::int32_t>(expected_labels.size(), -1));
    subject.gather_normalize(upload(subject, images), upload(subject, labels), upload(subject, indices),
                             batch, image_elements, 0.5F, 0.25F, x, out_labels);
    REQUIRE(relative_error(download(subject, x, expected.size()), expected) <= 1e-6);
    REQUIRE(download(subject, out_labels, expected_labels.size()) == expected_labels);
  }
}

void check_conv2d(Kernels& subject, const ConvShape& s) {
  INFO(describe(s));
  REQUIRE_OK(subject.plan_conv2d(s));
  const auto reference = make_reference_kernels();
  const auto x = random_values(elements(s.batch, s.in_channels, s.height, s.width), 1);
  const auto w = random_values(elements(s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel), 2);
  const auto b = random_values(elements(s.out_channels, 1), 3);
  const auto dy = random_values(elements(s.batch, s.out_channels, s.out_height(), s.out_width()), 4);
  std::vector<float> y(dy.size()), dx(x.size()), dw(w.size()), db(b.size());
  reference->conv2d_forward(s, x.data(), w.data(), b.data(), y.data());
  reference->conv2d_backward(s, x.data(), w.data(), dy.data(), dx.data(), dw.data(), db.data());

  const float *device_x = upload(subject, x), *device_w = upload(subject, w),
              *device_dy = upload(subject, dy);
  float *device_y = output(subject, y.size()), *device_dx = output(subject, dx.size()),
        *device_dw = output(subject, dw.size()), *device_db = output(subject, db.size());
  subject.conv2d_forward(s, device_x, device_w, upload(subject, b), device_y);
  REQUIRE(relative_error(download(subject, device_y, y.size()), y) <= 1e-5);
  subject.conv2d_backward(s, device_x, device_w, device_dy, device_dx, device_dw, device_db);
  REQUIRE(relative_error(download(subject, device_dx, dx.size()), dx) <= 1e-5);
  REQUIRE(relative_error(download(subject, device_dw, dw.size()), dw) <= 1e-4);
  REQUIRE(relative_error(download(subject, device_db, db.size()), db) <= 1e-4);

  device_dw = output(subject, dw.size());
  subject.conv2d_backward(s, device_x, device_w, device_dy, nullptr, device_dw, device_db);
  REQUIRE(relative_error(download(subject, device_dw, dw.size()), dw) <= 1e-4);
}

void check_relu_max_pool(Kernels& subject, const nn::MaxPoolSizes& s) {
  INFO(describe(s));
  auto x = random_values(elements(s.planes, s.height, s.width), 5);
  for (float& value : x) value = std::round(value * 4.0F) / 4.0F;  // many equals: the first must win
  if (x.size() > 6) {
    x[1] = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t i = x.size() / 2; i < x.size(); ++i) x[i] = -std::abs(x[i]);  // windows without a winner
  }
  const std::size_t outputs = elements(s.planes, s.out_height, s.out_width);
  const auto dy = random_values(outputs, 6);
  std::vector<float> y(outputs), dx(x.size());
  std::vector<std::uint8_t> winner(outputs);
  (void)nn::max_pool_forward(s, x.data(), y.data(), winner.data(), nullptr);
  (void)nn::max_pool_backward(s, dy.data(), winner.data(), dx.data(), nullptr);

  float *device_y = output(subject, outputs), *device_dx = output(subject, dx.size());
  auto* device_winner = upload(subject, std::vector<std::uint8_t>(outputs, 77));
  REQUIRE(nn::max_pool_forward(s, upload(subject, x), device_y, device_winner, subject.stream()) == 0);
  const auto actual = download(subject, device_y, outputs);
  for (std::size_t i = 0; i < outputs; ++i)
    REQUIRE((actual[i] == y[i] || (std::isnan(actual[i]) && std::isnan(y[i]))));
  REQUIRE(download(subject, device_winner, outputs) == winner);
  REQUIRE(nn::max_pool_backward(s, upload(subject, dy), device_winner, device_dx, subject.stream()) == 0);
  REQUIRE(download(subject, device_dx, dx.size()) == dx);
}

void check_linear(Kernels& subject, const LinearShape& s) {
  INFO(describe(s));
  REQUIRE_OK(subject.plan_linear(s));
  const auto reference = make_reference_kernels();
  const auto x = random_values(elements(s.batch, s.in_features), 7);
  const auto w = random_values(elements(s.out_features, s.in_features), 8);
  const auto b = random_values(elements(s.out_features, 1), 9);
  const auto dy = random_values(elements(s.batch, s.out_features), 10);
  const float *device_x = upload(subject, x), *device_w = upload(subject, w), *device_b = upload(subject, b);
  for (const bool relu : {false, true}) {
    INFO("relu " << relu);
    std::vector<float> y(dy.size()), dx(x.size()), dw(w.size()), db(b.size()), clobbered = dy;
    reference->linear_forward(s, x.data(), w.data(), b.data(), y.data(), relu);
    reference->linear_backward(s, x.data(), w.data(), y.data(), clobbered.data(), dx.data(), dw.data(),
                               db.data(), relu);

    float *device_y = output(subject, y.size()), *device_dx = output(subject, dx.size()),
          *device_dw = output(subject, dw.size()), *device_db = output(subject, db.size());
    subject.linear_forward(s, device_x, device_w, device_b, device_y, relu);
    REQUIRE(relative_error(download(subject, device_y, y.size()), y) <= 1e-5);
    auto diverged = x;
    diverged[0] = std::numeric_limits<float>::quiet_NaN();
    subject.linear_forward(s, upload(subject, diverged), device_w, device_b, device_y, relu);
    for (const float value : download(subject, device_y, static_cast<std::size_t>(s.out_features)))
      REQUIRE(std::isnan(value));
    // The mask of the reference: an output that rounds to another side of zero is not what is tested here.
    device_y = upload(subject, y);
    subject.linear_backward(s, device_x, device_w, device_y, upload(subject, dy), device_dx, device_dw,
                            device_db, relu);
    REQUIRE(relative_error(download(subject, device_dx, dx.size()), dx) <= 1e-5);
    REQUIRE(relative_error(download(subject, device_dw, dw.size()), dw) <= 1e-4);
    REQUIRE(relative_error(download(subject, device_db, db.size()), db) <= 1e-4);

    device_dw = output(subject, dw.size());
    subject.linear_backward(s, device_x, device_w, device_y, upload(subject, dy), nullptr, device_dw,
                            device_db, relu);
    REQUIRE(relative_error(download(subject, device_dw, dw.size()), dw) <= 1e-4);
  }
}

void check_cross_entropy(Kernels& subject, int batch, int classes, float smoothing) {
  INFO("batch " << batch << ", " << classes << " classes");
  const auto reference = make_reference_kernels();
  auto logits = random_values(elements(batch, classes), 11);
  for (float& value : logits) value = std::round(value * 40.0F) / 4.0F;  // equals, and a wide range
  const auto labels = random_integers(elements(batch, 1), classes, 12);
  std::vector<float> dlogits(logits.size());
  LossTotals expected{.loss_sum = 1.5, .correct = 2, .num_samples = 3};
  const float factor = 8;
  reference->cross_entropy({logits.data(), labels.data(), batch, classes, dlogits.data(), smoothing, &factor},
                           &expected);

  float* device_dlogits = output(subject, dlogits.size());
  auto* totals = upload(subject, std::vector<LossTotals>{{.loss_sum = 1.5, .correct = 2, .num_samples = 3}});
  const float* device_logits = upload(subject, logits);
  const std::int32_t* device_labels = upload(subject, labels);
  nn::LossArgs args{device_logits,
                    device_labels,
                    batch,
                    classes,
                    device_dlogits,
                    smoothing,
                    upload(subject, std::vector<float>{factor})};
  subject.cross_entropy(args, totals);
  REQUIRE(relative_error(download(subject, device_dlogits, dlogits.size()), dlogits) <= 1e-6);
  LossTotals actual = download(subject, totals, 1)[0];
  REQUIRE(std::abs(actual.loss_sum - expected.loss_sum) <= 1e-6 * std::abs(expected.loss_sum));
  REQUIRE(actual.correct == expected.correct);
  REQUIRE(actual.correct5 == expected.correct5);
  REQUIRE(actual.num_samples == expected.num_samples);

  args.dlogits = nullptr;
  subject.cross_entropy(args, totals);
  REQUIRE(download(subject, totals, 1)[0].num_samples == expected.num_samples + batch);
}

void check_optimizers(const Compute& subject, std::size_t count) {
  const Compute host = *make_compute(DeviceType::kCpu);
  const auto grads = random_values(count, 14);
  /// Parameters and state after steps of which the third has a gradient that is not finite.
  const auto run = [&](const Compute& compute, bool adamw, bool scaled, const SgdOptions& options) {
    nn::Graph graph({static_cast<int>(count)});
    auto model = nn::Model::create(graph, nn::linear("fc", graph.input(), 1));
    REQUIRE_OK(model);
    Generator generator(13);
    model->initialize(generator);
    REQUIRE_OK(model->allocate(compute));
    std::unique_ptr<Optimizer> optimizer;
    if (adamw)
      optimizer = *AdamW::create(*model, {.lr = options.lr, .max_grad_norm = options.max_grad_norm});
    else
      optimizer = *Sgd::create(*model, options);
    if (scaled) REQUIRE_OK(optimizer->use_grad_scaler({.init_scale = 4, .growth_interval = 2}));
    for (int step = 0; step < 5; ++step) {
      std::vector<float> arena(model->arena_elements(), 0.0F);
      std::copy(grads.begin(), grads.end(), arena.begin());
      if (scaled && step == 2) arena[count / 2] = std::numeric_limits<float>::infinity();
      compute->copy_to_device(model->grads(), arena.data(), arena.size() * sizeof(float));
      optimizer->step(step == 4 ? 1.0F / 3 : 1.0F);
    }
    return std::pair(model->read_params(), optimizer->read_state());
  };
  for (const SgdOptions& options :
       {SgdOptions{0.1F, 0.0F, 0.0F}, SgdOptions{0.03F, 0.9F, 5e-4F}, SgdOptions{0.03F, 0.9F, 5e-4F, true},
        SgdOptions{.lr = 0.03F, .max_grad_norm = 0.1F}})
    for (const bool scaled : {false, true})
      for (const bool adamw : {false, true}) {
        INFO(count << " parameters, " << (adamw ? "AdamW" : "SGD") << ", lr " << options.lr << ", momentum "
                   << options.momentum << ", clipped at " << options.max_grad_norm
                   << (scaled ? ", scaled" : ""));
        const auto expected = run(host, adamw, scaled, options),
                   actual = run(subject, adamw, scaled, options);
        // The norm is summed in another order; powers of beta are of another library.
        const bool exact = !adamw && options.max_grad_norm == 0;
        const auto agree = [&](const std::vector<float>& a, const std::vector<float>& b) {
          return exact ? same_bits(a, b) : relative_error(a, b) <= 1e-6;
        };
        REQUIRE(agree(actual.first, expected.first));
        REQUIRE(actual.second.arenas.size() == expected.second.arenas.size());
        for (std::size_t i = 0; i < expected.second.arenas.size(); ++i)
          REQUIRE(agree(actual.second.arenas[i], expected.second.arenas[i]));
        REQUIRE(actual.second.steps == expected.second.steps);
        REQUIRE(actual.second.loss_scale == expected.second.loss_scale);
        REQUIRE(actual.second.growth_tracker == expected.second.growth_tracker);
      }
}

}  // namespace muster::testing
