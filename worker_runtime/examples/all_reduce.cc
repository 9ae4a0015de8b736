// SPDX-License-Identifier: Apache-2.0
// 01_all_reduce: the smallest program. Run it as `muster --nproc-per-node=4 all_reduce`, under torchrun
// --no-python or srun, or alone: every rank contributes its number and prints the sum.
#include <cstdio>

#include <muster/init.h>

namespace {

muster::Result<void> run() {
  MUSTER_TRY(muster::Context context, muster::init());
  float value = static_cast<float>(context.rank + 1);
  MUSTER_OK(context.group->all_reduce({&value, 1, muster::DType::kFloat32}));
  std::printf("rank %d of %d: sum %g over %.*s\n", context.rank, context.world_size,
              static_cast<double>(value), static_cast<int>(context.group->backend().size()),
              context.group->backend().data());
  return {};
}

}  // namespace

int main() {
  const auto done = run();
  if (!done) std::fprintf(stderr, "all_reduce: %s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
