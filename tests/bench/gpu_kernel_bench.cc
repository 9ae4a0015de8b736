// SPDX-License-Identifier: Apache-2.0
// How fast one operation or optimizer is, for gpu_bench.py: a kernel's bytes against a copy on the device
// that moves as many, a convolution's or linear layer's operations against a large square product by the
// linear layer, in turn in one run. Bytes are the fewest that the operation must move. What computes under
// autocast is timed with its conversions, and so is its product. On a GPU events on the stream tell the time,
// on the CPU the steady clock. Usage: gpu_kernel_bench --list, or KERNEL cpu|cuda ELEMENTS PRODUCT BATCH
// ROUNDS: elements of a tensor, rows and columns of the product, samples of a convolution.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/datasets.h>
#include <muster/nn.h>
#include <muster/optim.h>
#include <muster/profile.h>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"
#ifdef MUSTER_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

using namespace muster;
using nn::Value;

struct Settings {
  Compute device;
  std::int64_t elements = 0;
  int product = 0, batch = 0, rounds = 0;
};

/// What is timed: bytes moved, or operations if there are any, and a call that enqueues it once.
struct Work {
  double bytes = 0, flop = 0;
  std::function<void()> run;
  std::string backend = "muster";
  DType autocast = DType::kFloat32;
};
using Make = std::function<Result<Work>(const Settings&)>;

#ifdef MUSTER_HAS_CUDA
/// Seconds between two events around `calls` on the device's stream.
Result<double> event_seconds(Device& device, const std::function<void()>& calls) {
  struct Event {
    cudaEvent_t value = nullptr;
    int error = cudaEventCreate(&value);
    ~Event() { (void)cudaEventDestroy(value); }
  } begin, end;
  auto* const stream = static_cast<cudaStream_t>(device.stream());
  float milliseconds = 0;
  device.report_cuda(begin.error, "cudaEventCreate");
  device.report_cuda(cudaEventRecord(begin.value, stream), "cudaEventRecord");
  calls();
  device.report_cuda(cudaEventRecord(end.value, stream), "cudaEventRecord");
  MUSTER_OK(device.synchronize());
  device.report_cuda(cudaEventElapsedTime(&milliseconds, begin.value, end.value), "cudaEventElapsedTime");
  MUSTER_OK(device.status());
  return milliseconds / 1e3;
}
#endif

/// Of one call, from so many in a row.
Result<double> seconds_of(Device& device, int in_a_row, const std::function<void()>& run) {
  const auto calls = [&] {
    for (int i = 0; i < in_a_row; ++i) run();
  };
#ifdef MUSTER_HAS_CUDA
  if (device.type() == DeviceType::kCuda) {
    MUSTER_TRY(const double seconds, event_seconds(device, calls));
    return seconds / in_a_row;
  }
#endif
  const auto begin = std::chrono::steady_clock::now();
  calls();
  MUSTER_OK(device.synchronize());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return std::max(took.count(), 1e-9) / in_a_row;
}

/// A value of its input's shape in memory of its own, which nothing writes.
class Untouched final : public nn::Operation {
  std::string_view type() const override { return "Untouched"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  void forward(const nn::Frame& /*frame*/) const override {}
  void backward(const nn::Frame& /*frame*/) const override {}
};

/// A model that is one operation, planned, with random values at its input and its output's gradient.
struct Single {
  std::unique_ptr<nn::Model> model;
  nn::Plan* plan = nullptr;
};

Result<Single> plan_single(const Settings& settings, const nn::Shape& input, int batch, DType autocast,
                           const std::function<Value(Value)>& build) {
  nn::Graph graph(input);
  MUSTER_TRY(nn::Model model,
             nn::Model::create(graph, build(graph.input()), {.autocast = autocast, .input_gradient = true}));
  Single made{std::make_unique<nn::Model>(std::move(model)), nullptr};
  Generator generator(1);
  made.model->initialize(generator);
  MUSTER_OK(made.model->allocate(settings.device));
  MUSTER_TRY(made.plan, made.model->plan(batch, nn::Mode::kTraining));
  const auto fill = [&](float* to, const nn::Shape& shape) {
    std::size_t count = static_cast<std::size_t>(batch);
    for (const int size : shape) count *= static_cast<std::size_t>(size);
    std::vector<float> values(count);
    generator.uniform(values, -1, 1);
    settings.device->copy_to_device(to, values.data(), count * sizeof(float));
  };
  fill(made.plan->input(), made.model->input_shape());
  made.plan->forward();
  fill(made.plan->output_gradient(), made.model->output_shape());
  return made;
}

Work work_of(const std::shared_ptr<Single>& single, bool forward) {
  Work work{.run = nullptr, .backend = single->plan->backends()};
  if (forward) {
    work.run = [single] { single->plan->forward(); };
  } else {
    work.run = [single] { single->plan->backward(); };
  }
  return work;
}

/// An operation on (64, 56, 56) images; `traffic`: tensors of the input's size that it reads and writes.
Make elementwise(bool forward, double traffic, std::function<Value(Value)> build) {
  return [=](const Settings& settings) -> Result<Work> {
    constexpr int kSample = 64 * 56 * 56;
    const int batch = static_cast<int>(std::max<std::int64_t>(1, settings.elements / kSample));
    MUSTER_TRY(Single single, plan_single(settings, {64, 56, 56}, batch, DType::kFloat32, build));
    Work work = work_of(std::make_shared<Single>(std::move(single)), forward);
    work.bytes = traffic * sizeof(float) * batch * kSample;
    return work;
  };
}

/// A convolution or a linear layer; `batch` 0: Settings::batch.
Make product(bool forward, DType autocast, const nn::Shape& input, int batch,
             std::function<Value(Value)> build) {
  return [=](const Settings& settings) -> Result<Work> {
    const int samples = batch > 0 ? batch : settings.batch;
    MUSTER_TRY(Single single, plan_single(settings, input, samples, autocast, build));
    nn::Shape batch_of_one = input;
    batch_of_one.insert(batch_of_one.begin(), 1);
    MUSTER_TRY(const ModelProfile counted,
               profile(*single.model, batch_of_one, {.rule = MacRule::kPure, .custom_rules = {}}));
    const auto macs = static_cast<double>(counted.macs);
    Work work = work_of(std::make_shared<Single>(std::move(single)), forward);
    work.flop = (forward ? 2.0 : 4.0) * macs * samples;
    work.autocast = autocast;
    return work;
  };
}

/// Conversions as autocast does them, and the sum of gradients.
Make conversion(DType from, DType to, bool adds) {
  return [=](const Settings& settings) -> Result<Work> {
    const auto count = static_cast<std::size_t>(settings.elements);
    MUSTER_TRY(void* const source, settings.device->allocate(count * size_of(from)));
    MUSTER_TRY(void* const target, settings.device->allocate(count * size_of(to)));
    const Cast cast{.from = source,
                    .to = target,
                    .from_dtype = from,
                    .to_dtype = to,
                    .adds = adds,
                    .count = settings.elements};
    Work work;
    work.bytes = static_cast<double>(count * (size_of(from) + (adds ? 2 : 1) * size_of(to)));
    work.run = [device = settings.device, cast] { nn::cast(*device, cast); };
    return work;
  };
}

Result<Work> gather(const Settings& settings) {
  constexpr int kPixels = 3 * 224 * 224;
  const int count = static_cast<int>(std::max<std::int64_t>(1, settings.elements / kPixels));
  const auto images = static_cast<std::size_t>(count), pixels = images * kPixels;
  Generator generator(1);
  const auto order = generator.permutation(count);
  MUSTER_TRY(void* const source, settings.device->allocate(pixels));
  MUSTER_TRY(void* const labels, settings.device->allocate(images));
  MUSTER_TRY(void* const indices, settings.device->allocate(images * sizeof(std::int32_t)));
  MUSTER_TRY(void* const x, settings.device->allocate(pixels * sizeof(float)));
  MUSTER_TRY(void* const out, settings.device->allocate(images * sizeof(std::int32_t)));
  settings.device->copy_to_device(indices, order.data(), images * sizeof(std::int32_t));
  const nn::GatherArgs args{static_cast<std::uint8_t*>(source),
                            static_cast<std::uint8_t*>(labels),
                            static_cast<std::int32_t*>(indices),
                            count,
                            kPixels,
                            {0.5F},
                            {0.5F},
                            static_cast<float*>(x),
                            static_cast<std::int32_t*>(out)};
  Work work;
  work.bytes = static_cast<double>(pixels * (1 + sizeof(float)));
  work.run = [args, device = settings.device] { nn::gather_normalize(*device, args); };
  return work;
}

/// `traffic`: arenas of the parameters' size that a step reads and writes.
template <class Optimizer, class Options>
Make optimizer(double traffic) {
  return [=](const Settings& settings) -> Result<Work> {
    constexpr int kOut = 1024;
    nn::Graph graph({static_cast<int>(std::max<std::int64_t>(1, settings.elements / kOut))});
    MUSTER_TRY(nn::Model created, nn::Model::create(graph, nn::linear("fc", graph.input(), kOut)));
    const auto model = std::make_shared<nn::Model>(std::move(created));
    MUSTER_OK(model->allocate(settings.device));
    MUSTER_TRY(std::shared_ptr<Optimizer> made, Optimizer::create(*model, Options{}));
    Work work;
    work.bytes = traffic * static_cast<double>(model->arena_bytes());
    work.run = [model, made] { made->step(); };
    return work;
  };
}

struct Case {
  std::string name;
  Make make;
};

std::vector<Case> cases() {
  constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16;
  std::vector<Case> all{
      {"add",
       elementwise(true, 3,
                   [](Value x) { return nn::add(x, nn::apply("", std::make_unique<Untouched>(), {x})); })},
      {"cast float32 to bfloat16", conversion(kF32, kBf16, false)},
      {"cast bfloat16 to float32", conversion(kBf16, kF32, false)},
      {"sum of gradients", conversion(kF32, kF32, true)},
      {"gather and normalise", gather},
      {"SGD", optimizer<Sgd, SgdOptions>(5)},
      {"AdamW", optimizer<AdamW, AdamWOptions>(7)}};
  const auto both = [&](const std::string& name, const std::function<Make(bool)>& make) {
    all.push_back({name + " forward", make(true)});
    all.push_back({name + " backward", make(false)});
  };
  const auto elements = [&](const std::string& name, double forward, double backward,
                            const std::function<Value(Value)>& build) {
    both(name,
         [&](bool is_forward) { return elementwise(is_forward, is_forward ? forward : backward, build); });
  };
  // Of a 2x2 window the pooling writes one value and, as a byte, where the largest one was.
  constexpr double kPooled = 1 + 1.0 / 4 + 1.0 / 16;
  elements("ReLU", 2, 3, [](Value x) { return nn::relu(x); });
  elements("BatchNorm", 3, 5, [](Value x) { return nn::batch_norm2d("bn", x); });  // statistics, then values
  elements("max pooling", kPooled, kPooled, [](Value x) { return nn::max_pool2d(x); });
  elements("ReLU and max pooling", kPooled, kPooled, [](Value x) { return nn::max_pool2d(nn::relu(x)); });
  elements("average pooling", 1.25, 1.25, [](Value x) { return nn::avg_pool2d(x); });
  elements("dropout", 2, 2, [](Value x) { return nn::dropout(x); });
  const auto products = [&](const std::string& name, const nn::Shape& input, int batch,
                            const std::function<Value(Value)>& build) {
    for (const DType dtype : {kF32, kBf16})
      both(name + (dtype == kBf16 ? " bfloat16" : ""),
           [&](bool is_forward) { return product(is_forward, dtype, input, batch, build); });
  };
  const auto convolution = [&](const nn::Shape& input, int out, int kernel, int stride) {
    const nn::Conv2dOptions options{
        .out_channels = out, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false};
    const std::string size = std::to_string(kernel);
    products("conv " + size + "x" + size + " of " + std::to_string(input[0]) + " to " + std::to_string(out) +
                 " at " + std::to_string(input[1]),
             input, 0, [options](Value x) { return nn::conv2d("c", x, options); });
  };
  convolution({3, 224, 224}, 64, 7, 2);
  convolution({64, 56, 56}, 64, 3, 1);
  convolution({256, 56, 56}, 64, 1, 1);
  convolution({512, 7, 7}, 512, 3, 1);
  products("linear 1024 of 256 to 120", {256}, 1024, [](Value x) { return nn::linear("fc", x, 120); });
  products("linear 256 of 2048 to 1000", {2048}, 256, [](Value x) { return nn::linear("fc", x, 1000); });
  return all;
}

/// The call that the work is compared with: a copy that reads and writes as many bytes, or a product.
Result<Work> reference(const Settings& settings, const Work& work) {
  const int n = settings.product;
  if (work.flop > 0)
    return product(true, work.autocast, {n}, n, [n](Value x) { return nn::linear("fc", x, n); })(settings);
  const auto bytes = static_cast<std::size_t>(work.bytes / 2);
  MUSTER_TRY(void* const from, settings.device->allocate(bytes));
  MUSTER_TRY(void* const to, settings.device->allocate(bytes));
  Work copy{.bytes = 2.0 * static_cast<double>(bytes), .run = nullptr, .backend = "copy"};
  copy.run = [=, device = settings.device] { device->copy_on_device(to, from, bytes); };
  return copy;
}

Result<void> measure(const Settings& settings, const Case& chosen) {
  MUSTER_TRY(const Work work, chosen.make(settings));
  MUSTER_TRY(const Work other, reference(settings, work));
  struct Side {
    const Work* work;
    int in_a_row;
    std::vector<double> seconds;
  } sides[] = {{&work, 1, {}}, {&other, 1, {}}};
  for (Side& side : sides)  // twice: the first call may load a library
    for (int i = 0; i < 2; ++i) {
      MUSTER_TRY(const double once, seconds_of(*settings.device, 1, side.work->run));
      side.in_a_row = static_cast<int>(std::clamp(0.005 / std::max(once, 1e-9), 1.0, 200.0));
    }
  for (int round = 0; round < settings.rounds; ++round)
    for (Side& side : sides) {
      MUSTER_TRY(const double seconds, seconds_of(*settings.device, side.in_a_row, side.work->run));
      side.seconds.push_back(seconds);
    }
  std::printf("{\"kernel\": \"%s\", \"backend\": \"%s\", \"device\": \"%s\"", chosen.name.c_str(),
              work.backend.c_str(), describe(settings.device).c_str());
  for (const Side& side : sides) {
    const char* const name = &side == sides ? "" : "reference_";
    std::printf(", \"%sbytes\": %.0f, \"%sflop\": %.0f, \"%sseconds\": [", name, side.work->bytes, name,
                side.work->flop, name);
    for (const double& seconds : side.seconds)
      std::printf("%s%.9f", &seconds == side.seconds.data() ? "" : ", ", seconds);
    std::printf("]");
  }
  std::printf("}\n");
  return {};
}

Result<void> run(std::span<char*> arguments) {
  const std::vector<Case> all = cases();
  if (arguments.size() == 1 && std::string_view(arguments[0]) == "--list") {
    for (const Case& each : all) std::printf("%s\n", each.name.c_str());
    return {};
  }
  const auto chosen = std::find_if(all.begin(), all.end(), [&](const Case& each) {
    return arguments.size() == 6 && each.name == arguments[0];
  });
  if (chosen == all.end())
    return fail(ErrorCode::kInvalidArgument,
                "usage: gpu_kernel_bench --list | KERNEL cpu|cuda ELEMENTS PRODUCT BATCH ROUNDS");
  const bool cuda = std::string_view(arguments[1]) == "cuda";
  MUSTER_TRY(Compute device, make_compute(cuda ? DeviceType::kCuda : DeviceType::kCpu));
  return measure({std::move(device), std::atoll(arguments[2]), std::atoi(arguments[3]),
                  std::atoi(arguments[4]), std::atoi(arguments[5])},
                 *chosen);
}

}  // namespace

int main(int argc, char** argv) {
  const auto done = run(std::span(argv + 1, static_cast<std::size_t>(argc - 1)));
  if (!done) std::fprintf(stderr, "gpu_kernel_bench: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
