// SPDX-License-Identifier: Apache-2.0
// An operation and a loss of the program's own with CUDA kernels: SiLU, and the squared error against one-hot
// labels. Checked, and trained by muster's Trainer: on the first GPU, or on the CPU where there is none.
#include <cmath>
#include <cstdio>

#include <muster/gradcheck.h>
#include <muster/init.h>
#include <muster/trainer.h>

using namespace muster;

namespace {

template <class Each>
__global__ void each_kernel(Each each, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) each(i);
}

/// each(i) for every i below `count`: enqueued on the stream, or done here without one. Returns a
/// cudaError_t.
template <class Each>
int for_each(Each each, std::int64_t count, void* stream) {
  if (stream == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) each(i);
    return 0;
  }
  each_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(
      each, count);
  return cudaGetLastError();
}

struct SiluForward {
  const float* x;
  float* y;
  __host__ __device__ void operator()(std::int64_t i) const { y[i] = x[i] / (1 + expf(-x[i])); }
};

struct SiluBackward {
  const float *x, *dy;
  float* dx;
  __host__ __device__ void operator()(std::int64_t i) const {
    const float s = 1 / (1 + expf(-x[i]));
    dx[i] = dy[i] * s * (1 + x[i] * (1 - s));
  }
};

/// x * sigmoid(x).
class Silu final : public nn::Operation {
 public:
  std::string_view type() const override { return "SiLU"; }
  Result<nn::Shape> configure(std::span<const nn::Shape> inputs) override { return inputs[0]; }
  bool backward_reads_y() const override { return false; }
  void forward(const nn::Frame& f) const override {
    f.report_cuda(for_each(SiluForward{f.x[0].f32(), f.y.f32()}, f.y.count(), f.stream), "silu");
  }
  void backward(const nn::Frame& f) const override {
    if (f.dx[0])
      f.report_cuda(for_each(SiluBackward{f.x[0].f32(), f.dy.f32(), f.dx[0].f32()}, f.y.count(), f.stream),
                    "silu backward");
  }
};

/// The whole batch by one thread: it is small, and its sums have one order.
struct SquaredErrorOfBatch {
  const float* output;
  const std::int32_t* labels;
  float* gradient;
  const float* scale;
  LossTotals* totals;
  int batch, classes;
  __host__ __device__ void operator()(std::int64_t /*i*/) const {
    for (int row = 0; row < batch; ++row) {
      int largest = 0;
      for (int c = 0; c < classes; ++c) {
        const int at = row * classes + c;
        if (output[at] > output[row * classes + largest]) largest = c;
        const float difference = output[at] - (c == labels[row] ? 1.0F : 0.0F);
        totals->loss_sum += difference * difference;
        if (gradient != nullptr) gradient[at] = 2 * difference / batch * (scale == nullptr ? 1.0F : *scale);
      }
      totals->correct += largest == labels[row] ? 1 : 0;
    }
    totals->num_samples += batch;
  }
};

class SquaredError final : public Loss {
 public:
  int compute(const LossFrame& f) const override {
    return for_each(SquaredErrorOfBatch{f.output.f32(), f.labels, f.gradient.f32(), f.scale, f.totals,
                                        f.output.dims[0], f.output.dims[1]},
                    1, f.stream);
  }
};

/// Which half of an image of 4x4 is brighter.
ImageDataset halves() {
  ImageDataset images{1, 4, 4, 2, {}, {}};
  Generator generator(3);
  for (int i = 0; i < 256; ++i) {
    int sums[2] = {0, 0};
    for (int k = 0; k < 16; ++k) {
      images.images.push_back(static_cast<std::uint8_t>(generator.next32()));
      sums[k / 8] += images.images.back();
    }
    images.labels.push_back(sums[1] > sums[0] ? 1 : 0);
  }
  return images;
}

nn::Value silu(nn::Value x) {
  return nn::apply("", std::make_unique<Silu>(), {x});
}

Result<void> run() {
  const bool gpu = gpu_count() > 0;
  MUSTER_TRY(const Compute compute, make_compute(gpu ? DeviceType::kCuda : DeviceType::kCpu));
  InitOptions options;
  options.backend = gpu ? Backend::kNccl : Backend::kAuto;
  options.cuda_stream = stream_of(compute);
  MUSTER_TRY(const Context context, init(options));
  MUSTER_OK(nn::gradcheck(compute, {5}, silu));

  nn::Graph graph({1, 4, 4});
  const nn::Value hidden = silu(nn::linear("hidden", nn::flatten(graph.input()), 16));
  MUSTER_TRY(nn::Model model, nn::Model::create(graph, nn::linear("output", hidden, 2)));
  Generator generator(1);
  model.initialize(generator);
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, compute, *context.group));
  const ImageDataset images = halves();
  MUSTER_TRY(const DeviceDataset data, DeviceDataset::upload(compute, images));
  MUSTER_TRY(const auto sgd, Sgd::create(model, {.lr = 0.02F}));
  MUSTER_TRY(const auto trainer,
             Trainer::create(*ddp, *sgd, data, {.batch_size = 16, .loss = std::make_shared<SquaredError>()}));
  std::vector<std::int32_t> order(256);
  for (int i = 0; i < 256; ++i) order[static_cast<std::size_t>(i)] = i;
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 40; ++epoch) {
    MUSTER_OK(trainer->begin_epoch(order));
    for (std::int64_t left = trainer->steps_in_epoch(); left > 0;) {
      MUSTER_TRY(const std::int64_t steps, trainer->steps(left));
      left -= steps;
    }
    MUSTER_TRY(const Metrics metrics, trainer->take_metrics());
    last = metrics.loss();
    if (epoch == 0) first = last;
  }
  std::printf("on %s the loss fell %s\n", describe(compute).c_str(),
              last < first / 3 ? "to less than a third" : "too little");
  return {};
}

}  // namespace

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "own_cuda: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
