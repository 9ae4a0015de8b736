// SPDX-License-Identifier: Apache-2.0
// What a program does wrong with a model is one sentence: which layer, which shapes or types, what to do.
#include <cmath>
#include <fstream>
#include <functional>
#include <unistd.h>

#include <fmt/format.h>

#include <muster/gradient_reducer.h>
#include <muster/state_dict.h>
#include <muster/trainer.h>
#include <muster/worker.h>

#include "tests/support/catch.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/trainer_run.h"
#include "worker_runtime/device/device.h"

using namespace muster;
using nn::Value;

namespace {

struct Row {
  const char* what;
  std::function<Result<void>()> call;
  ErrorCode code;
  std::string sentence;
};

template <class T>
Result<void> outcome(const Result<T>& result) {
  if (!result) return fail(result.error());
  return {};
}

Result<void> built(const nn::Shape& input, const std::function<Value(Value)>& build,
                   const nn::ModelOptions& options = {}) {
  nn::Graph graph(input);
  return outcome(nn::Model::create(graph, build(graph.input()), options));
}

void check(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    INFO(row.what);
    const Result<void> result = row.call();
    REQUIRE_FALSE(result);
    CHECK(result.error().message == row.sentence);
    CHECK(result.error().code == row.code);
  }
}

Compute cpu() {
  return *make_compute(DeviceType::kCpu);
}

}  // namespace

TEST_CASE("a graph whose shapes or types do not meet is refused in one sentence") {
  constexpr ErrorCode kWrong = ErrorCode::kInvalidArgument;
  check({
      {"an image into a linear layer",
       [] {
         return built({1, 28, 28}, [](Value x) { return nn::linear("fc1", x, 10); });
       },
       kWrong,
       "operation 0 'fc1': Linear expects one input (features), it has (1, 28, 28); flatten() makes one"},
      {"a vector into a convolution; the first error stays",
       [] { return built({4}, [](Value x) { return nn::linear("b", nn::conv2d("a", x, {}), 1); }); }, kWrong,
       "operation 0 'a': Conv2d expects one input (channels, height, width), it has (4); give the graph's "
       "input three dimensions"},
      {"a kernel larger than the image",
       [] {
         return built({1, 2, 2}, [](Value x) { return nn::conv2d("c", x, {.kernel = 5}); });
       },
       kWrong,
       "operation 0 'c': Conv2d: a kernel of 5 is larger than its input (1, 2, 2); use a smaller kernel or "
       "more padding"},
      {"a convolution of nothing",
       [] {
         return built({1, 8, 8}, [](Value x) { return nn::conv2d("c", x, {.out_channels = 0}); });
       },
       kWrong,
       "operation 0 'c': Conv2d of 0 channels, kernel 3, stride 1, padding 0: each is at least 1, the "
       "padding "
       "0 to 32767"},
      {"groups that divide nothing",
       [] {
         return built({3, 8, 8},
                      [](Value x) { return nn::conv2d("c", x, {.out_channels = 4, .groups = 2}); });
       },
       kWrong,
       "operation 0 'c': Conv2d: 2 groups do not divide its 3 input and 4 output channels; choose a divisor "
       "of both"},
      {"a sum of two shapes",
       [] { return built({4}, [](Value x) { return nn::add(x, nn::linear("a", x, 3)); }); }, kWrong,
       "operation 1: Add expects two inputs of one shape, they are (4) and (3); a conv2d() or linear() in "
       "front of one makes them alike"},
      {"BatchNorm of a vector", [] { return built({4}, [](Value x) { return nn::batch_norm2d("bn", x); }); },
       kWrong,
       "operation 0 'bn': BatchNorm2d expects one input (channels, height, width), it has (4); put it in "
       "front of flatten()"},
      {"BatchNorm's options",
       [] {
         return built({4, 2, 2}, [](Value x) { return nn::batch_norm2d("bn", x, {.eps = 0}); });
       },
       kWrong,
       "operation 0 'bn': BatchNorm2d with eps 0 and momentum 0.1: eps must be positive, "
       "momentum within 0 and 1"},
      {"pooling of a small image",
       [] {
         return built({1, 1, 1}, [](Value x) { return nn::avg_pool2d(nn::relu(x)); });
       },
       kWrong,
       "operation 1: AvgPool2d with a kernel of 2 expects (channels, height, width) that hold it, it has (1, "
       "1, 1); use a smaller kernel, or larger images"},
      {"pooling's options",
       [] {
         return built({1, 4, 4}, [](Value x) { return nn::max_pool2d(x, {.padding = 2}); });
       },
       kWrong,
       "operation 0: MaxPool2d with kernel 2, stride 2, padding 2: the kernel is 1 to 32767, the "
       "stride positive, the padding at most half the kernel"},
      {"a kernel whose area is no int",
       [] {
         return built({1, 1, 1},
                      [](Value x) { return nn::avg_pool2d(x, {.kernel = 1 << 28, .padding = 1 << 27}); });
       },
       kWrong,
       "operation 0: AvgPool2d with kernel 268435456, stride 268435456, padding 134217728: the kernel is 1 "
       "to 32767, the stride positive, the padding at most half the kernel"},
      {"a large window",
       [] {
         return built({1, 4, 4}, [](Value x) { return nn::max_pool2d(x, {.kernel = 16}); });
       },
       kWrong, "operation 0: MaxPool2d: a kernel of 16, 1 to 15 are supported"},
      {"a probability", [] { return built({4}, [](Value x) { return nn::dropout(x, -1); }); }, kWrong,
       "operation 0: Dropout of (4) with p -1: it takes one input and a p within 0 and 1"},
      {"two layers of one name",
       [] { return built({4}, [](Value x) { return nn::linear("a", nn::linear("a", x, 4), 4); }); }, kWrong,
       "operation 1 'a': there is a parameter 'a.weight' already; name each operation differently"},
      {"no outputs", [] { return built({4}, [](Value x) { return nn::linear("a", x, 0); }); }, kWrong,
       "operation 0 'a': Linear: 0 output features; it has at least 1"},
      {"autocast to integers",
       [] { return built({4}, [](Value x) { return nn::linear("a", x, 3); }, {.autocast = DType::kInt32}); },
       kWrong, "autocast to I32; it takes F32, BF16 or F16"},
      {"more dimensions than a tensor has",
       [] {
         return built({2, 2, 2, 2, 2}, [](Value x) { return nn::linear("a", nn::flatten(nn::relu(x)), 3); });
       },
       kWrong,
       "operation 0: a value of (2, 2, 2, 2, 2); beside the batch it has at most three dimensions, each at "
       "least 1, and less than 2^31 elements"},
      {"images without channels",
       [] {
         return built({0, 5, 5}, [](Value x) { return nn::batch_norm2d("bn", x); });
       },
       kWrong,
       "operation 0 'bn': a value of (0, 5, 5); beside the batch it has at most three dimensions, each at "
       "least 1, and less than 2^31 elements"},
      {"images that are larger than ints count",
       [] {
         return built({3, 1 << 16, 1 << 16}, [](Value x) { return nn::linear("a", nn::flatten(x), 3); });
       },
       kWrong,
       "operation 0: a value of (3, 65536, 65536); beside the batch it has at most three dimensions, each at "
       "least 1, and less than 2^31 elements"},
      {"another depth of ResNet", [] { return outcome(nn::resnet(19)); }, kWrong,
       "ResNet-19 is not there: 18, 34, 50, 101 and 152 are"},
      {"a graph without a parameter under the loss",
       [] {
         return built({4}, [](Value x) {
           (void)nn::linear("a", x, 3);
           return nn::relu(x);
         });
       },
       kWrong,
       "the model's output (4) depends on no parameter, so no loss of it can train one; make the model of "
       "the value that the last layer returns"},
  });
}

TEST_CASE("a model that meets other data, another device or too little memory is refused in one sentence") {
  constexpr ErrorCode kWrong = ErrorCode::kInvalidArgument;
  const auto group = make_single_group();
  const ImageDataset images = testing::striped_images(10);
  const auto trainer = [&](nn::Model model, const ImageDataset& source, int batch) -> Result<void> {
    const Compute compute = cpu();
    MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, compute, *group));
    MUSTER_TRY(const DeviceDataset data, DeviceDataset::upload(compute, source));
    MUSTER_TRY(const auto optimizer, Sgd::create(model, {}));
    return outcome(Trainer::create(*ddp, *optimizer, data, {.batch_size = batch}));
  };
  ImageDataset many = images;
  many.classes = 11;
  const auto prepared = [](int batch) -> Result<void> {
    nn::Model model = nn::mlp();
    MUSTER_OK(model.allocate(cpu()));
    return outcome(model.plan(batch, nn::Mode::kTraining));
  };
  check({
      {"images of another size",
       [&] {
         nn::Graph graph({1, 32, 32});
         return trainer(*nn::Model::create(graph, nn::linear("fc", nn::flatten(graph.input()), 10)), images,
                        4);
       },
       kWrong,
       "the data set's images have 784 pixels, the model takes (1, 32, 32) of 1024; make the model for "
       "images of this size"},
      {"more classes than outputs", [&] { return trainer(nn::mlp(), many, 4); }, kWrong,
       "the data set has 11 classes, the model's output is (10); give its last layer as many outputs as "
       "classes"},
      {"an empty batch", [&] { return trainer(nn::mlp(), images, 0); }, kWrong,
       "a batch size of 0; it is at least 1"},
      {"backward without a loss",
       [&]() -> Result<void> {
         nn::Model model = nn::mlp();
         MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, cpu(), *group));
         MUSTER_TRY(const nn::Plan* const plan, model.plan(2, nn::Mode::kInference));
         return ddp->backward(*plan);
       },
       kWrong,
       "ddp: backward() of a plan for inference, which has no gradient of a loss; make the plan with "
       "Mode::kTraining"},
      {"tensors beyond 32 bits", [&] { return prepared(10'000'000); }, ErrorCode::kUnsupported,
       "operation 2 'fc1': linear 784->512 on a batch of 10000000: a tensor would exceed 2^31 elements; use "
       "a smaller batch"},
      {"more memory than there is", [] { return outcome(cpu()->allocate(std::size_t{1} << 50)); },
       ErrorCode::kExhausted,
       "allocate 1125899906842624 bytes of CPU memory: none left; use a smaller batch or model"},
      {"types that do not meet in a collective",
       [&] {
         float in[2] = {};
         std::int32_t out[2] = {};
         return group->all_gather({in, 2, DType::kFloat32}, {out, 2, DType::kInt32});
       },
       kWrong, "all_gather of F32 x 2 over 1 ranks needs an output of 2, not I32 x 2"},
      {"gradients compressed to integers",
       [&] {
         float gradients[4] = {};
         const std::size_t offsets[] = {0};
         return outcome(GradientReducer::create(*group, gradients, 4, offsets, {.compress = DType::kInt32}));
       },
       kWrong, "gradient reducer: compressed to I32; it sends F32, BF16 or F16"},
  });
  for (const double fraction : {0.0, -0.5, 1.5, std::nan("")})
    CHECK(make_compute(DeviceType::kCpu, 0, {.memory_fraction = fraction}).error().code == kWrong);
  const auto missing = make_compute(DeviceType::kCuda, 99);
  REQUIRE_FALSE(missing);
  // By what this build and this machine have: no CUDA, no driver, or fewer GPUs.
  const std::string& text = missing.error().message;
  INFO(text);
  CHECK((text.ends_with("train on the CPU, or build where nvcc is on PATH") ||
         text.find("check nvidia-smi") != std::string::npos ||
         text.ends_with("GPUs here; check LOCAL_RANK and CUDA_VISIBLE_DEVICES")));
}

TEST_CASE("weights of another model or type are refused in one sentence, and change nothing") {
  constexpr ErrorCode kOther = ErrorCode::kMismatch;
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/weights";
  nn::Graph graph({2});
  nn::Model model = *nn::Model::create(graph, nn::linear("fc", graph.input(), 1));
  const std::string before = nn::parameters_sha256(model);
  const auto load = [&](const std::vector<safetensors::TensorView>& tensors) {
    return [&, tensors]() -> Result<void> {
      MUSTER_TRY(const std::string bytes, safetensors::serialize(tensors, {}));
      std::ofstream(path, std::ios::binary) << bytes;
      return load_state_dict(path, model);
    };
  };
  check({
      {"another shape", load({{"fc.weight", DType::kFloat32, {1, 3}, std::string_view("0123456789ab")}}),
       kOther,
       "state dict " + path +
           ": tensor 'fc.weight' is F32 1x3, the model's is F32 1x2; these are the weights of another model"},
      {"another type", load({{"fc.weight", DType::kFloat16, {1, 2}, std::string_view("0123")}}), kOther,
       "state dict " + path + ": tensor 'fc.weight' is F16 1x2, the model's is F32 1x2; save it as F32"},
      {"no such tensor", load({{"fc1.weight", DType::kFloat32, {1}, std::string_view("0123")}}), kOther,
       "state dict " + path + ": it has no tensor 'fc.weight'; these are the weights of another model"},
      {"one too many",
       load({{"fc.weight", DType::kFloat32, {1, 2}, std::string_view("01234567")},
             {"fc.bias", DType::kFloat32, {1}, std::string_view("0123")},
             {"fc2.bias", DType::kFloat32, {1}, std::string_view("0123")}}),
       kOther,
       "state dict " + path +
           ": its tensor 'fc2.bias' is none of the model's; these are the weights of another model"},
  });
  REQUIRE(nn::parameters_sha256(model) == before);
}

TEST_CASE("a memory fraction caps what parameters, gradients and activations take together") {
  const double total =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  constexpr std::size_t kCap = std::size_t{6} << 20;
  const ComputeOptions options{.memory_fraction = (kCap + 0.5) / total};
  const auto small = [&] { return *make_compute(DeviceType::kCpu, 0, options); };
  const auto sentence = [&](std::size_t asked, std::size_t used, const std::string& name) {
    return "allocate " + std::to_string(asked) + " bytes on " + name + ": " + std::to_string(used) +
           " of the " + std::to_string(kCap) + " bytes that a memory fraction of " +
           fmt::format("{}", options.memory_fraction) +
           " allows are in use; use a smaller batch or model, or a larger fraction";
  };
  const Compute compute = small();
  REQUIRE_OK(compute->allocate(kCap - 1000));
  REQUIRE(compute->allocate(1001).error() ==
          Error{ErrorCode::kExhausted, sentence(1001, kCap - 1000, describe(compute))});
  REQUIRE_OK(compute->allocate(1000));

  // 669,706 parameters and their gradients take 5,359,616 bytes.
  const Compute training = small();
  const auto group = make_single_group();
  nn::Model model = nn::mlp();
  const auto ddp = DistributedDataParallel::create(model, training, *group);
  REQUIRE_OK(ddp);
  REQUIRE_OK(model.plan(16, nn::Mode::kTraining));
  const auto large = model.plan(512, nn::Mode::kTraining);
  REQUIRE_FALSE(large);
  const std::string& text = large.error().message;
  INFO(text);
  CHECK(large.error().code == ErrorCode::kExhausted);
  CHECK(text.starts_with("activations of a batch of 512, most of them of operation 0 (784): allocate "));
  CHECK(text.ends_with("allows are in use; use a smaller batch or model, or a larger fraction"));
  nn::Model second = nn::mlp();
  CHECK(DistributedDataParallel::create(second, training, *group).error().code == ErrorCode::kExhausted);
}

TEST_CASE("a worker's backend and device are names that are known and go together") {
  const auto named = [](std::string backend, std::string device) {
    WorkerOptions options;
    options.backend = std::move(backend);
    options.device = std::move(device);
    return options.check();
  };
  for (const char* const backend : {"auto", "shm", "tcp", "gloo"})
    for (const char* const device : {"auto", "cpu"}) REQUIRE_OK(named(backend, device));
  for (const char* const device : {"auto", "cuda", "0", "3,0,12"}) REQUIRE_OK(named("nccl", device));
  for (const char* const device : {"", "tpu", "0,", ",1", "0,0", "-1", "1;2", "0x1", "99999999999"}) {
    const auto refused = named("auto", device);
    REQUIRE_FALSE(refused);
    REQUIRE(refused.error().message ==
            "device '" + std::string(device) +
                "': not auto, cpu, cuda or a list of different GPU numbers as 0,3");
  }
  REQUIRE_FALSE(named("nccl", "cpu"));
  for (const char* const backend : {"shm", "tcp", "gloo"}) REQUIRE_FALSE(named(backend, "0,1"));
  REQUIRE(
      named("mpi", "auto").error().message.find("start the program with muster or srun instead of mpirun") !=
      std::string::npos);
  REQUIRE(named("smh", "auto").error().message == "backend 'smh': not auto, shm, tcp, nccl or gloo");
  WorkerOptions options;
  options.compute.memory_fraction = std::nan("");
  REQUIRE_FALSE(options.check());
  options = {};
  options.replicas = 0;
  REQUIRE(options.check().error().message == "0 replicas; there is at least 1");
}
