// SPDX-License-Identifier: Apache-2.0
// Which samples of a data set of seven each of two ranks sees, epoch by epoch.
#include <cstdio>

#include <muster/sampler.h>

int main() {
  for (int epoch = 0; epoch < 2; ++epoch)
    for (int rank = 0; rank < 2; ++rank) {
      auto sampler = muster::DistributedSampler::create({.num_samples = 7, .rank = rank, .world_size = 2});
      if (!sampler) return 1;
      sampler->set_epoch(static_cast<std::uint64_t>(epoch));
      std::printf("epoch %d rank %d:", epoch, rank);
      for (const int index : sampler->indices()) std::printf(" %d", index);
      std::printf("\n");
    }
}
