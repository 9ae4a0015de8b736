// SPDX-License-Identifier: Apache-2.0
// Each operation's backward pass against central differences of its forward pass, what it refuses, and the
// fused operations against the pairs they stand for.
#include <cmath>

#include <muster/gradcheck.h>

#include "tests/support/catch.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/graph/memory_plan.h"
#include "worker_runtime/ops/dropout/dropout.h"

using namespace muster;
using nn::Shape, nn::Value;

namespace {

void check(const Shape& input, const std::function<Value(Value)>& build, nn::GradcheckOptions options = {}) {
  REQUIRE_OK(nn::gradcheck(*make_compute(DeviceType::kCpu), input, build, options));
}

/// Output and gradients after one step from fixed values.
struct Outcome {
  std::vector<float> output, grads, buffers;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome step(nn::Model model, int batch) {
  Generator generator(3);
  model.initialize(generator);
  REQUIRE_OK(model.allocate(*make_compute(DeviceType::kCpu)));
  auto planned = model.plan(batch, nn::Mode::kTraining);
  REQUIRE_OK(planned);
  const nn::Plan& plan = **planned;
  std::size_t inputs = static_cast<std::size_t>(batch), outputs = inputs;
  for (const int dim : model.input_shape()) inputs *= static_cast<std::size_t>(dim);
  for (const int dim : model.output_shape()) outputs *= static_cast<std::size_t>(dim);
  generator.uniform(std::span(plan.input(), inputs), -1, 1);
  plan.forward();
  generator.uniform(std::span(plan.output_gradient(), outputs), -1, 1);
  Outcome outcome;
  outcome.output.assign(plan.output(), plan.output() + outputs);
  plan.backward();
  outcome.grads = model.read_grads();
  outcome.buffers = model.read_buffers();
  return outcome;
}

/// An operation as a program would write it: y = x^2.
class Square final : public nn::Operation {
 public:
  explicit Square(double mistake = 0) : slope_(static_cast<float>(2 + mistake)) {}
  std::string_view type() const override { return "Square"; }
  Result<Shape> configure(std::span<const Shape> inputs) override { return inputs[0]; }
  bool backward_reads_y() const override { return false; }
  void forward(const nn::Frame& f) const override {
    for (std::int64_t i = 0; i < f.y.count(); ++i) f.y.f32()[i] = f.x[0].f32()[i] * f.x[0].f32()[i];
  }
  void backward(const nn::Frame& f) const override {
    if (!f.dx[0]) return;
    for (std::int64_t i = 0; i < f.y.count(); ++i)
      f.dx[0].f32()[i] = slope_ * f.x[0].f32()[i] * f.dy.f32()[i];
  }

 private:
  float slope_;
};

/// The identity, which takes and gives NHWC.
class ToNhwc final : public nn::Operation {
 public:
  std::string_view type() const override { return "ToNhwc"; }
  Result<Shape> configure(std::span<const Shape> inputs) override { return inputs[0]; }
  TensorFormat format(Device& /*device*/, const TensorFormat& /*offered*/) const override {
    return {DType::kFloat32, Layout::kNHWC};
  }
  void forward(const nn::Frame& f) const override { copy(f.x[0], f.y); }
  void backward(const nn::Frame& f) const override { copy(f.dy, f.dx[0]); }

 private:
  static void copy(const Tensor& from, const Tensor& to) {
    REQUIRE(from.layout == Layout::kNHWC);
    REQUIRE(to.layout == Layout::kNHWC);
    std::copy_n(from.f32(), from.count(), to.f32());
  }
};

Value square(Value x, double mistake = 0) {
  return nn::apply("", std::make_unique<Square>(mistake), {x});
}

}  // namespace

TEST_CASE("gradients of Linear agree with central differences, with and without ReLU behind it") {
  check({7}, [](Value x) { return nn::linear("fc", x, 5); });
  check({7}, [](Value x) { return nn::linear("b", nn::relu(nn::linear("a", x, 9)), 4); }, {.fuse = true});
}

TEST_CASE("gradients of Conv2d agree with central differences: stride, padding, without bias") {
  check({2, 6, 5}, [](Value x) { return nn::conv2d("c", x, {.out_channels = 3}); });
  check({2, 7, 6}, [](Value x) {
    return nn::conv2d("c", x, {.out_channels = 3, .kernel = 3, .stride = 2, .padding = 1, .bias = false});
  });
  check({4, 5, 6}, [](Value x) { return nn::conv2d("c", x, {.out_channels = 6, .groups = 2}); });
  check({17, 4, 4},
        [](Value x) { return nn::conv2d("c", x, {.out_channels = 4, .kernel = 1, .bias = false}); });
}

TEST_CASE("an operation of one's own that takes NHWC changes no bit of the float32 operations around it") {
  const auto model = [](bool nhwc) {
    nn::Graph graph({3, 7, 6});
    const auto passed = [nhwc](Value x) { return nhwc ? nn::apply("", std::make_unique<ToNhwc>(), {x}) : x; };
    Value x = passed(nn::relu(nn::batch_norm2d("bn", nn::conv2d("a", graph.input(), {.out_channels = 5}))));
    x = nn::add(passed(nn::conv2d("b", x, {.out_channels = 5, .padding = 1})), x);
    x = nn::linear("fc", nn::flatten(passed(nn::max_pool2d(x))), 3);
    auto made = nn::Model::create(graph, x);
    REQUIRE_OK(made);
    return *std::move(made);
  };
  REQUIRE(step(model(true), 4) == step(model(false), 4));
}

TEST_CASE("gradients of BatchNorm2d agree with central differences") {
  check({3, 5, 4}, [](Value x) { return nn::batch_norm2d("bn", x); }, {.batch = 3});
  check({2, 1, 1}, [](Value x) { return nn::batch_norm2d("bn", x); }, {.batch = 9});
}

TEST_CASE("gradients of pooling agree with central differences, where windows overlap and are padded too") {
  check({2, 7, 6}, [](Value x) { return nn::max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); },
        {.step = 1e-4});
  check({2, 6, 7}, [](Value x) { return nn::max_pool2d(x); });
  check({2, 6, 7}, [](Value x) { return nn::max_pool2d(nn::relu(x)); }, {.fuse = true});
  check({3, 5, 4}, [](Value x) { return nn::adaptive_avg_pool2d(x); });
  check({2, 5, 7}, [](Value x) { return nn::adaptive_avg_pool2d(x, 3, 2); });
  check({2, 3, 2}, [](Value x) { return nn::adaptive_avg_pool2d(x, 5, 4); });
  check({2, 7, 6}, [](Value x) { return nn::avg_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1}); });
}

TEST_CASE("gradients of a value that several operations read are added") {
  check({6}, [](Value x) { return nn::add(x, x); });
  check({6}, [](Value x) { return nn::add(nn::relu(x), nn::add(square(x), x)); });
  // The view is the last to read its input, the first, and neither.
  check({2, 3, 1},
        [](Value x) {
          const Value h = nn::batch_norm2d("bn", x);
          return nn::add(nn::flatten(square(h)), nn::flatten(h));
        },
        {.batch = 4});
  check({2, 3, 1},
        [](Value x) {
          const Value h = nn::batch_norm2d("bn", x);
          const Value flat = nn::flatten(h);
          return nn::add(nn::flatten(square(h)), square(flat));
        },
        {.batch = 4});
}

TEST_CASE("an operation of a program's own is checked, and a wrong gradient is named") {
  check({5}, [](Value x) { return square(x); });
  const auto wrong =
      nn::gradcheck(*make_compute(DeviceType::kCpu), {5}, [](Value x) { return square(x, 0.1); });
  REQUIRE_FALSE(wrong);
  REQUIRE(wrong.error().code == ErrorCode::kMismatch);
  REQUIRE(wrong.error().message.starts_with("gradcheck: input[0]: backward says "));
}

TEST_CASE("an operation that the loss does not depend on has no gradient and does no harm") {
  check({4}, [](Value x) {
    (void)nn::linear("unused", x, 3);
    return nn::linear("used", x, 2);
  });
}

TEST_CASE("what is not finite stays so: ReLU and MaxPool2d hand a NaN on") {
  for (const bool fuse : {false, true}) {
    nn::Graph g({1, 2, 2});
    const Value out = nn::max_pool2d(nn::relu(g.input()));
    auto model = nn::Model::create(g, out, {.fuse = fuse, .input_gradient = true});
    REQUIRE_OK(model);
    REQUIRE_OK(model->allocate(*make_compute(DeviceType::kCpu)));
    auto plan = model->plan(1, nn::Mode::kTraining);
    REQUIRE_OK(plan);
    const std::array<float, 4> x{1, std::nanf(""), 3, -1};
    std::copy(x.begin(), x.end(), (*plan)->input());
    (*plan)->forward();
    REQUIRE(std::isnan((*plan)->output()[0]));
  }
}

TEST_CASE("average pooling counts its padding as zeros") {
  nn::Graph graph({1, 2, 2});
  auto model =
      nn::Model::create(graph, nn::avg_pool2d(graph.input(), {.kernel = 2, .stride = 1, .padding = 1}),
                        {.input_gradient = true});
  REQUIRE_OK(model);
  REQUIRE_OK(model->allocate(*make_compute(DeviceType::kCpu)));
  auto plan = model->plan(1, nn::Mode::kTraining);
  REQUIRE_OK(plan);
  const std::array<float, 4> x{4, 8, 12, 16};
  std::copy(x.begin(), x.end(), (*plan)->input());
  (*plan)->forward();
  const std::array<float, 9> y{1, 3, 2, 4, 10, 6, 3, 7, 4};
  REQUIRE(std::equal(y.begin(), y.end(), (*plan)->output()));
}

TEST_CASE("Dropout draws the numbers of Philox4x32-10") {  // known answers of its authors' Random123
  const auto draws = [](std::uint32_t c, std::uint32_t key) {
    const nn::FourWords drawn = nn::philox({{c, c, c, c}}, key, key);
    return std::vector<std::uint32_t>(drawn.word, drawn.word + 4);
  };
  REQUIRE(draws(0, 0) == std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(draws(~0U, ~0U) == std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE(
    "Dropout keeps values times 1 / (1 - p), gradients alike, by other masks in each pass of training") {
  constexpr int kCount = 20001;
  using Values = std::vector<float>;
  nn::Graph graph({kCount});
  const Value first = nn::dropout(graph.input(), 0.25F);
  auto model =
      nn::Model::create(graph, nn::add(first, nn::dropout(graph.input(), 0.5F)), {.input_gradient = true});
  REQUIRE_OK(model);
  REQUIRE_OK(model->allocate(*make_compute(DeviceType::kCpu)));
  const auto run = [&](nn::Mode mode) {
    auto plan = model->plan(1, mode);
    REQUIRE_OK(plan);
    std::fill_n((*plan)->input(), kCount, 3.0F);
    (*plan)->forward();
    const Values y((*plan)->output(), (*plan)->output() + kCount);
    if (mode == nn::Mode::kInference) return y;
    std::fill_n((*plan)->output_gradient(), kCount, 3.0F);
    (*plan)->backward();
    REQUIRE(Values((*plan)->input_gradient(), (*plan)->input_gradient() + kCount) == y);
    return y;
  };
  model->manual_seed(7);
  const Values y = run(nn::Mode::kTraining);
  // 0 or 4 from the one, 0 or 6 from the other; each of the four by its probability, within 5 sigma.
  for (const auto& [value, probability] :
       std::vector<std::pair<float, double>>{{0, 0.125}, {4, 0.375}, {6, 0.125}, {10, 0.375}})
    REQUIRE(std::abs(std::count(y.begin(), y.end(), value) - kCount * probability) <
            5 * std::sqrt(kCount * probability * (1 - probability)));
  const Values second = run(nn::Mode::kTraining);
  REQUIRE(second != y);
  REQUIRE(run(nn::Mode::kInference) == Values(kCount, 6.0F));
  const std::uint64_t step = model->read_random_state().step;
  REQUIRE(step == 2);
  const Values third = run(nn::Mode::kTraining);
  model->manual_seed(7, 2);
  REQUIRE(run(nn::Mode::kTraining) == third);
  model->manual_seed(8);
  REQUIRE(run(nn::Mode::kTraining) != y);
  model->manual_seed(7);
  model->set_shards(1, 2);  // the second and third part of the samples of one step
  const Values part = run(nn::Mode::kTraining), next = run(nn::Mode::kTraining);
  REQUIRE((part != y && next != y && part != next && next != second));
  REQUIRE(model->read_random_state().step == 1);
  run(nn::Mode::kTraining);
  REQUIRE(model->read_random_state().step == 2);
}

TEST_CASE("the fused operations compute the bits of those they replace") {
  REQUIRE(step(nn::garment_classifier({.fuse = true}), 5) ==
          step(nn::garment_classifier({.fuse = false}), 5));
}

TEST_CASE(
    "fused or not, a seed gives each parameter the same values, also where branches are written side by "
    "side") {
  const auto model = [](bool fuse) {
    nn::Graph graph({5});
    const Value a = nn::linear("a", graph.input(), 3), b = nn::linear("b", graph.input(), 3);
    auto made = nn::Model::create(graph, nn::add(nn::relu(a), b), {.fuse = fuse});
    REQUIRE_OK(made);
    return *std::move(made);
  };
  REQUIRE(model(true).parameters().front().name == "a.weight");
  REQUIRE(step(model(true), 4) == step(model(false), 4));
}

TEST_CASE("in inference BatchNorm2d uses its running statistics, which training moves by its momentum") {
  nn::Graph graph({1, 2, 1});
  const Value y = nn::batch_norm2d("bn", graph.input(), {.eps = 1e-5F, .momentum = 0.25F});
  auto model = nn::Model::create(graph, y);
  REQUIRE_OK(model);
  Generator generator(1);
  model->initialize(generator);
  REQUIRE_OK(model->allocate(*make_compute(DeviceType::kCpu)));
  auto training = model->plan(2, nn::Mode::kTraining);
  REQUIRE_OK(training);
  const std::array<float, 4> x{1, 2, 3, 6};  // mean 3, variance 3.5, unbiased 14/3
  std::copy(x.begin(), x.end(), (*training)->input());
  (*training)->forward();
  REQUIRE((*training)->output()[3] == Approx(3 / std::sqrt(3.5)));
  const std::vector<float> buffers = model->read_buffers();
  REQUIRE(model->buffers()[0].name == "bn.running_mean");
  REQUIRE(model->buffers()[1].name == "bn.running_var");
  REQUIRE(buffers[model->buffers()[0].offset] == Approx(0.75));
  REQUIRE(buffers[model->buffers()[1].offset] == Approx(0.75 + 0.25 * 14 / 3));
  auto inference = model->plan(1, nn::Mode::kInference);
  REQUIRE_OK(inference);
  (*inference)->input()[0] = (*inference)->input()[1] = 6;
  (*inference)->forward();
  REQUIRE((*inference)->output()[0] == Approx((6 - 0.75) / std::sqrt(0.75 + 0.25 * 14 / 3)));
  REQUIRE(model->read_buffers() == buffers);
}

TEST_CASE("blocks that are in use at the same time never share memory, and the arena is close to the least") {
  Generator generator(7);
  for (int round = 0; round < 50; ++round) {
    nn::MemoryPlan plan;
    struct Block {
      std::size_t bytes;
      int begin, end;
    };
    std::vector<Block> blocks;
    for (int i = 0; i < 60; ++i) {
      const int begin = static_cast<int>(generator.next32() % 100);
      const Block block{generator.next32() % 5000, begin, begin + static_cast<int>(generator.next32() % 20)};
      blocks.push_back(block);
      plan.add(block.bytes, block.begin, block.begin);
      plan.use(i, block.end);
    }
    const nn::MemoryPlan::Layout layout = plan.lay_out();
    for (std::size_t a = 0; a < blocks.size(); ++a) {
      REQUIRE(layout.offsets[a] % nn::MemoryPlan::kAlignment == 0);
      REQUIRE(layout.offsets[a] + blocks[a].bytes <= layout.size_bytes);
      for (std::size_t b = 0; b < a; ++b) {
        const bool together = blocks[a].begin <= blocks[b].end && blocks[b].begin <= blocks[a].end;
        const bool apart = layout.offsets[a] + blocks[a].bytes <= layout.offsets[b] ||
                           layout.offsets[b] + blocks[b].bytes <= layout.offsets[a];
        REQUIRE((!together || apart || blocks[a].bytes == 0 || blocks[b].bytes == 0));
      }
    }
    REQUIRE(layout.size_bytes >= layout.live_bytes);
    REQUIRE(static_cast<double>(layout.size_bytes) <= 1.3 * static_cast<double>(layout.live_bytes));
  }
}
