// SPDX-License-Identifier: Apache-2.0
// DataParallel: one process, one batch cut into parts for its replicas. On three replicas on the CPU, which
// stand for three GPUs, a network of two layers learns which of two numbers is the larger.
#include <cstdio>

#include <muster/data_parallel.h>
#include <muster/optim.h>

using namespace muster;

static Result<void> run() {
  constexpr int kReplicas = 3, kBatch = 4;
  std::vector<nn::Model> models;
  std::vector<Compute> computes;
  for (int i = 0; i < kReplicas; ++i) {
    nn::Graph graph({2});
    const nn::Value hidden = nn::relu(nn::linear("hidden", graph.input(), 8));
    MUSTER_TRY(models.emplace_back(), nn::Model::create(graph, nn::linear("output", hidden, 2)));
    MUSTER_TRY(computes.emplace_back(), make_compute(DeviceType::kCpu));
  }
  Generator generator(0);
  models[0].initialize(generator);
  MUSTER_TRY(const auto parallel, DataParallel::create(models, computes));
  MUSTER_TRY(const auto sgd, Sgd::create(models[0], {.lr = 0.5F}));
  std::printf("a batch of %d on %d replicas:", kBatch, kReplicas);
  for (const int part : chunk_sizes(kBatch, kReplicas)) std::printf(" %d", part);
  std::puts("");
  for (int step = 0; step <= 200; ++step) {
    std::vector<float> x(2 * kBatch);
    std::vector<std::int32_t> labels(kBatch);
    generator.uniform(x, -1, 1);
    for (std::size_t i = 0; i < kBatch; ++i) labels[i] = x[2 * i] < x[2 * i + 1] ? 1 : 0;
    MUSTER_TRY(const LossTotals totals, parallel->forward_backward(x, labels));
    sgd->step();
    if (step % 100 == 0) std::printf("step %3d: loss %.4f\n", step, totals.loss_sum / kBatch);
  }
  return {};
}

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "data_parallel: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
