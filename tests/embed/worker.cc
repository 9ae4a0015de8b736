// SPDX-License-Identifier: Apache-2.0
// A user's program that gathers and sums ranks: world_size 1 when started alone, N under `muster
// --nproc-per-node=N`.
#include <iostream>

#include <muster/init.h>

int main() {
  auto context = muster::init();
  if (!context) {
    std::cerr << "embed_worker: " << context.error().message << '\n';
    return 1;
  }
  float sum = static_cast<float>(context->rank + 1);
  if (auto done = context->group->all_reduce({&sum, 1, muster::DType::kFloat32}); !done) {
    std::cerr << "embed_worker: " << done.error().message << '\n';
    return 1;
  }
  std::cout << "rank " << context->rank << " of " << context->world_size << ": sum " << sum << '\n';
}
