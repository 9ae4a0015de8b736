// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels on a GPU against the reference, over the shapes of the CPU tests and over larger ones that
// go to cuBLASLt and cuDNN.
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernels_agreement.h"

using namespace muster;
using namespace muster::testing;

namespace {

std::unique_ptr<testing::Kernels> gpu() {
  require_gpu();
  auto made = testing::make_cuda_kernels(0);
  REQUIRE_OK(made);
  return std::move(*made);
}

using Backends = std::map<std::string, int>;

}  // namespace

TEST_CASE("the GPU normalises the chosen images as the reference does") {
  check_gather_normalize(*gpu());
}

TEST_CASE("the GPU's direct convolutions agree with the reference") {
  const auto kernels = gpu();
  for (const auto& shape : conv_cases()) check_conv2d(*kernels, shape);
  REQUIRE_OK(kernels->plan_conv2d(conv_cases().front()));  // again
  REQUIRE(kernels->backends() == Backends{{"muster", static_cast<int>(conv_cases().size())}});
}

TEST_CASE("the GPU's large convolutions agree with the reference") {
  const auto kernels = gpu();
  for (const ConvShape& shape : std::vector<ConvShape>{
           {.batch = 8,
            .in_channels = 32,
            .height = 14,
            .width = 14,
            .out_channels = 64,
            .kernel = 3,
            .padding = 1},
           {.batch = 4,
           .in_channels = 64,
           .height = 15,
           .width = 13,
           .out_channels = 48,
           .kernel = 3,
           .stride = 2,
           .padding = 1},
           {.batch = 4, .in_channels = 64, .height = 8, .width = 8, .out_channels = 128, .kernel = 1},
           {.batch = 2,
           .in_channels = 3,
           .height = 40,
           .width = 40,
           .out_channels = 64,
           .kernel = 7,
           .stride = 2,
           .padding = 3}})
    check_conv2d(*kernels, shape);
#ifdef MUSTER_HAS_CUDNN
  REQUIRE(kernels->backends() == Backends{{"cuDNN", 4}});
#else
  REQUIRE(kernels->backends() == Backends{{"muster", 4}});
#endif
}

TEST_CASE("a large convolution of tensors at multiples of 4 bytes agrees with one at multiples of 16") {
  const auto kernels = gpu();
  const ConvShape s{.batch = 4, .in_channels = 64, .height = 8, .width = 8, .out_channels = 64, .kernel = 1};
  REQUIRE_OK(kernels->plan_conv2d(s));
  const std::size_t image = 4 * 64 * 64, filter = 64 * 64;  // elements of x and y, of w
  const auto values = random_values(image, 1), gradients = random_values(image, 2);
  const auto at = [&](std::size_t offset) {
    std::vector<float*> tensors;  // x, w, b, dy; y, dx, dw, db
    for (int i = 0; i < 8; ++i) {
      const auto memory = kernels->allocate((image + offset) * sizeof(float));
      REQUIRE_OK(memory);
      tensors.push_back(static_cast<float*>(*memory) + offset);
    }
    for (const std::size_t i : {0, 1, 2})
      kernels->copy_to_device(tensors[i], values.data(), (i == 0 ? image : filter) * 4);
    kernels->copy_to_device(tensors[3], gradients.data(), image * 4);
    kernels->conv2d_forward(s, tensors[0], tensors[1], tensors[2], tensors[4]);
    kernels->conv2d_backward(s, tensors[0], tensors[1], tensors[3], tensors[5], tensors[6], tensors[7]);
    std::vector<float> results(2 * image + filter);
    kernels->copy_to_host(results.data(), tensors[4], image * 4);
    kernels->copy_to_host(results.data() + image, tensors[5], image * 4);
    kernels->copy_to_host(results.data() + 2 * image, tensors[6], filter * 4);
    REQUIRE_OK(kernels->synchronize());
    return results;
  };
  REQUIRE(relative_error(at(1), at(0)) <= 1e-4);
}

TEST_CASE("the GPU's pooling chooses the reference's winners, ties and NaN included") {
  const auto kernels = gpu();
  for (const auto& shape : pool_cases()) check_relu_max_pool(*kernels, shape);
}

TEST_CASE("the GPU's linear layers for small batches agree with the reference") {
  const auto kernels = gpu();
  for (const auto& shape : linear_cases()) check_linear(*kernels, shape);
  for (int batch = 1; batch <= 17; ++batch) check_linear(*kernels, {batch, 35, 6});
}

TEST_CASE("the GPU's linear layers for large batches agree with the reference") {
  const auto kernels = gpu();
  for (const LinearShape& shape : std::vector<LinearShape>{
           {128, 256, 120}, {128, 120, 84}, {128, 84, 10}, {128, 784, 128}, {100, 33, 7}, {1000, 1, 1}})
    check_linear(*kernels, shape);
  REQUIRE(kernels->backends() == Backends{{"cuBLASLt", 6}});
}

TEST_CASE("the GPU's cross-entropy agrees with the reference for few and many rows and classes") {
  const auto kernels = gpu();
  for (const int batch : {1, 2, 4, 31, 32, 33, 100, 256, 1100})
    for (const int classes : {1, 2, 10, 32, 33, 1000})
      for (const float smoothing : {0.0F, 0.1F}) check_cross_entropy(*kernels, batch, classes, smoothing);
}

TEST_CASE("the GPU's optimizers agree with the CPU's, SGD bit for bit") {
  for (const int count : {1, 255, 257, 44426, 100001})
    check_optimizers(gpu()->device(), static_cast<std::size_t>(count));
}

TEST_CASE("the GPU's memory is zeroed and 256-byte aligned, and what is copied there comes back") {
  const auto kernels = gpu();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    const auto memory = kernels->allocate(bytes);
    REQUIRE_OK(memory);
    REQUIRE(reinterpret_cast<std::uintptr_t>(*memory) % 256 == 0);
    std::vector<unsigned char> host(bytes, 0xff);
    kernels->copy_to_host(host.data(), *memory, bytes);
    REQUIRE(std::all_of(host.begin(), host.end(), [](unsigned char byte) { return byte == 0; }));
  }
  REQUIRE(kernels->device()->type() == DeviceType::kCuda);
  REQUIRE(kernels->stream() != nullptr);
  REQUIRE_THAT(std::string(kernels->device()->name()), Catch::Contains("cuda ("));
}

TEST_CASE("memory that the GPU does not have is kExhausted and the kernels stay usable") {
  const auto kernels = gpu();
  const auto refused = kernels->allocate(std::size_t{1} << 50);
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().code == ErrorCode::kExhausted);
  REQUIRE_OK(kernels->allocate(1024));
  REQUIRE_OK(kernels->synchronize());
}

TEST_CASE("one thread uses two objects in turn, on two GPUs where there are two") {
  require_gpu();
  std::vector<std::unique_ptr<testing::Kernels>> both;
  std::vector<std::unique_ptr<StepRecorder>> recorders;
  std::vector<float*> values;
  for (const int device : {0, 1}) {
    auto made = testing::make_cuda_kernels(device % gpu_count());
    REQUIRE_OK(made);
    const auto memory = (*made)->allocate(256);
    REQUIRE_OK(memory);
    values.push_back(static_cast<float*>(*memory));
    recorders.push_back((*made)->make_step_recorder());
    both.push_back(std::move(*made));
  }
  for (const LinearShape& shape : {LinearShape{4, 33, 5}, LinearShape{100, 33, 7}})
    for (const auto& kernels : both) check_linear(*kernels, shape);
  const std::vector<float> ones(16, 1.0F);
  for (std::size_t i = 0; i < 2; ++i) both[i]->copy_to_device(values[i], ones.data(), 64);
  for (std::size_t i = 0; i < 2; ++i) {
    // values[16..] = values[..16], on the GPU whose turn it is.
    REQUIRE_OK(recorders[i]->record(0, [&]() -> Result<void> {
      both[i]->copy_on_device(values[i] + 16, values[i], 64);
      return {};
    }));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE_OK(recorders[i]->replay(0));
    REQUIRE_OK(recorders[i]->mark(0));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE_OK(recorders[i]->wait(0));
    std::vector<float> read(16);
    both[i]->copy_to_host(read.data(), values[i] + 16, 64);
    REQUIRE_OK(both[i]->synchronize());
    REQUIRE(read == ones);
  }
}

TEST_CASE("a GPU that does not exist is kNotFound") {
  require_gpu();
  const auto refused = testing::make_cuda_kernels(1000);
  REQUIRE_FALSE(refused);
  REQUIRE(refused.error().code == ErrorCode::kNotFound);
}
