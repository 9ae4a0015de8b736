// SPDX-License-Identifier: Apache-2.0
// Trains ResNet-18 on FashionMNIST, data-parallel: alone, or one process per rank under `muster`, torchrun or
// srun. Usage: resnet18 [steps [directory of the data set]]
#include <cstdio>
#include <cstdlib>

#include <muster/init.h>
#include <muster/sampler.h>
#include <muster/trainer.h>

using namespace muster;

namespace {

Result<void> train(std::int64_t steps, const std::string& directory) {
  // The ranks: from the environment that the launcher set. GPUs if this node has one for each of its ranks.
  const char* const local = std::getenv("LOCAL_RANK");
  const int gpu = local == nullptr ? 0 : std::atoi(local);
  const bool use_gpu = gpu < gpu_count();
  MUSTER_TRY(const Compute compute, make_compute(use_gpu ? DeviceType::kCuda : DeviceType::kCpu, gpu));
  InitOptions options;
  options.backend = use_gpu ? Backend::kNccl : Backend::kAuto;
  options.cuda_device = gpu;
  options.cuda_stream = stream_of(compute);
  MUSTER_TRY(const Context context, init(options));

  // The model: rank 0's first parameters are everybody's.
  MUSTER_TRY(nn::Model model, nn::resnet(18, {1, 28, 28}, 10));
  Generator generator(0);
  model.initialize(generator);
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, compute, *context.group));

  // The data, and which of it this rank sees.
  MUSTER_TRY(const ImageDataset images, load_fashion_mnist(directory, Split::kTrain));
  MUSTER_TRY(const DeviceDataset data, DeviceDataset::upload(compute, images));
  MUSTER_TRY(const DistributedSampler sampler,
             DistributedSampler::create({data.size, context.rank, context.world_size}));
  MUSTER_TRY(const auto sgd, Sgd::create(model, {.lr = 0.02F}));
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *sgd, data, {.batch_size = 16}));
  MUSTER_OK(trainer->begin_epoch(sampler.indices()));
  for (std::int64_t step = 0; step < std::min(steps, trainer->steps_in_epoch()); ++step)
    MUSTER_OK(trainer->step());
  MUSTER_TRY(const Metrics metrics, trainer->take_metrics());
  const std::string sum = nn::parameters_sha256(model);
  std::printf("rank %d of %d on %s: loss %.4f, parameters %s\n", context.rank, context.world_size,
              describe(compute).c_str(), metrics.loss(), sum.c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const auto done =
      train(argc > 1 ? std::atoll(argv[1]) : 1'000'000, argc > 2 ? argv[2] : kFashionMnistDirectory);
  if (!done) std::fprintf(stderr, "resnet18: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
