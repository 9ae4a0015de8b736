// SPDX-License-Identifier: Apache-2.0
// 01_all_reduce: the smallest program. Run it as `muster --nproc-per-node=4 all_reduce`, under torchrun
// --no-python or srun, alone, or by hand with an --init-method for each rank: every rank contributes its
// number and prints the sum.
#include <chrono>
#include <cstdio>
#include <vector>

#include <muster/init.h>

#include "command_line.h"

namespace {

muster::Result<int> run(const muster::InitOptions& options, std::size_t count, int iterations) {
  MUSTER_TRY(muster::Context context, muster::init(options));
  std::vector<float> values(count);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < iterations; ++i) {
    values.assign(count, static_cast<float>(context.rank + 1));
    MUSTER_OK(context.group->all_reduce({values.data(), count, muster::DType::kFloat32}));
  }
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  std::printf("rank %d of %d: sum %g over %.*s", context.rank, context.world_size,
              static_cast<double>(values.back()), static_cast<int>(context.group->backend().size()),
              context.group->backend().data());
  if (iterations > 1) std::printf(", %zu bytes in %.1f us", count * sizeof(float), time.count() / iterations);
  std::puts("");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  muster::InitOptions options;
  std::string backend = "gloo", device = "cpu";
  std::size_t count = 1, bytes = 0;
  int iterations = 1, local_rank = -1;
  CLI::App app("Sums float32 numbers over ranks.", "all_reduce");
  app.add_option("--init-method", options.init_method, "env://, tcp://host:port?... or file:///path?...");
  app.add_option("--backend", backend, "gloo (the best here), shm or tcp")
      ->check([](const std::string& name) {
        return name == "gloo" || name == "shm" || name == "tcp"
                   ? ""
                   : name + ": use gloo, shm or tcp" + (name == "mpi" ? ", which need no mpirun" : "");
      });
  app.add_option("--local-rank,--local_rank", local_rank, "place on this node; the CPU is everybody's");
  app.add_option("--device", device, "cpu, or auto, which is the same")->check([](const std::string& name) {
    return name == "cpu" || name == "auto" ? "" : name + ": this program sums on the CPU; use cpu or auto";
  });
  app.add_option("--count", count, "how many")->check(CLI::Range(1, 1 << 28));
  app.add_option("--bytes", bytes, "their size")->check(CLI::Range(4, 1 << 30))->excludes("--count");
  app.add_option("--iterations", iterations, "how often")->check(CLI::Range(1, 1 << 30));
  return run_program(app, argc, argv, [&] {
    if (backend == "shm") options.backend = muster::Backend::kShm;
    if (backend == "tcp") options.backend = muster::Backend::kTcp;
    return run(options, bytes == 0 ? count : bytes / sizeof(float), iterations);
  });
}
