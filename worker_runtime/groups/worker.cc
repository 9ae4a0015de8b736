// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <vector>

#include <climits>
#include <fmt/format.h>

#include <muster/worker.h>

#include "rendezvous/base/env.h"
#include "rendezvous/base/fail.h"

namespace muster {
namespace {

/// WorkerOptions, read.
struct Wanted {
  Backend backend = Backend::kAuto;
  bool may_use_gpus = true, must_use_gpus = false;
  std::vector<int> gpus;  // by local rank; empty: each its own number
};

Result<Wanted> read(const WorkerOptions& options) {
  Wanted out;
  MUSTER_TRY(out.backend, parse_backend(options.backend));
  const std::string& device = options.device;
  const bool of_gpu = out.backend == Backend::kNccl;
  const bool of_cpu = !of_gpu && options.backend != "auto";
  const bool names_gpus = device != "auto" && device != "cpu";
  out.may_use_gpus = device != "cpu" && (names_gpus || !of_cpu);
  out.must_use_gpus = names_gpus || of_gpu;
  if (names_gpus && device != "cuda") {
    const auto list = parse_integers("device", device, 0, INT_MAX);
    if (!list || std::set<int>(list->begin(), list->end()).size() != list->size())
      return invalid("device '{}': not auto, cpu, cuda or a list of different GPU numbers as 0,3", device);
    out.gpus = *list;
  }
  if ((of_gpu && device == "cpu") || (of_cpu && names_gpus))
    return invalid("backend {} is not of device {}; leave one of them auto", options.backend, device);
  const double fraction = options.compute.memory_fraction;
  if (options.local_rank < -1 || !(fraction > 0 && fraction <= 1))
    return invalid(
        "local rank {} or memory fraction {}: a rank is not negative, a fraction above 0 and at most 1",
        options.local_rank, fraction);
  if (options.replicas < 1) return invalid("{} replicas; there is at least 1", options.replicas);
  return out;
}

/// Why this rank cannot train on GPUs from place `local_rank` on; nothing where it can: then it has `gpus`.
std::optional<std::string> obstacle(const Wanted& wanted, int local_rank, int world_size,
                                    std::vector<int>& gpus) {
  const int count = gpu_count();
  for (int& gpu : gpus) {
    const auto place = static_cast<std::size_t>(local_rank + (&gpu - gpus.data()));
    if (!wanted.gpus.empty() && place >= wanted.gpus.size())
      return gpus.size() > 1
                 ? fmt::format("has {} replicas, and {} GPUs are named", gpus.size(), wanted.gpus.size())
                 : fmt::format("is local rank {}, and {} GPUs are named", local_rank, wanted.gpus.size());
    gpu = wanted.gpus.empty() ? static_cast<int>(place) : wanted.gpus[place];
    if (count == 0) {
      const auto none = make_compute(DeviceType::kCuda, gpu);  // says what is missing
      return "sees no GPU" + (none ? "" : ": " + none.error().message);
    }
    if (gpu >= count)
      return fmt::format("would take GPU {} and sees {}: a GPU per {} is needed", gpu, count,
                         gpus.size() > 1 ? "replica" : "rank");
  }
  const auto nccl = world_size > 1 ? check_backend(Backend::kNccl) : Result<void>();
  return nccl ? std::nullopt : std::optional("cannot use NCCL: " + nccl.error().message);
}

/// A collective: whether every rank can have a GPU. If one cannot, this is an error where GPUs were asked
/// for.
Result<bool> agree_on_gpus(const Wanted& wanted, const Context& context, int local_rank,
                           std::vector<int>& gpus) {
  const auto problem = obstacle(wanted, local_rank, context.world_size, gpus);
  // The lowest rank with an obstacle, and whether nobody sees a GPU.
  std::int32_t votes[] = {problem ? context.rank : context.world_size, gpu_count() > 0 ? 0 : 1};
  MUSTER_OK(context.group->all_reduce({votes, 2, DType::kInt32}, ReduceOp::kMin));
  if (votes[0] == context.world_size) return true;
  if (wanted.must_use_gpus)
    return fail(ErrorCode::kNotFound,
                problem ? fmt::format("rank {} {}", context.rank, *problem)
                        : fmt::format("rank {} has no GPU, as it says itself; this is rank {}", votes[0],
                                      context.rank));
  if (votes[0] == context.rank && votes[1] == 0)
    std::fprintf(stderr, "muster: note: training on the CPU: rank %d %s\n", context.rank, problem->c_str());
  return false;
}

}  // namespace

Result<void> WorkerOptions::check() const {
  MUSTER_TRY([[maybe_unused]] const Wanted wanted, read(*this));
  return {};
}

Result<Worker> start_worker(const WorkerOptions& options) {
  MUSTER_TRY(const Wanted wanted, read(options));
  InitOptions init_options;
  init_options.init_method = options.init_method;
  if (wanted.backend != Backend::kNccl) init_options.backend = wanted.backend;
  Worker out;
  MUSTER_TRY(out.context, init(init_options));
  const Context& context = out.context;
  if (options.backend == "gloo" && context.rank == 0)
    std::fprintf(stderr, "muster: note: backend gloo: muster's own for the CPU is used (%.*s)\n",
                 static_cast<int>(context.group->backend().size()), context.group->backend().data());
  if (options.replicas > 1 && context.world_size > 1)
    return invalid("{} replicas (DataParallel) in a job of {} ranks; start one process, or no replicas",
                   options.replicas, context.world_size);
  bool use_gpus = false;
  std::vector<int> gpus(static_cast<std::size_t>(options.replicas));  // of the CPU as many times its one
  if (wanted.may_use_gpus) {
    const int local_rank = options.local_rank >= 0 ? options.local_rank : context.local_rank;
    MUSTER_TRY(use_gpus, agree_on_gpus(wanted, context, local_rank, gpus));
  }
  for (const int gpu : gpus) {
    MUSTER_TRY(out.replicas.emplace_back(),
               make_compute(use_gpus ? DeviceType::kCuda : DeviceType::kCpu, gpu, options.compute));
  }
  out.compute = out.replicas.front();
  if (use_gpus) {
    init_options.backend = Backend::kNccl;
    init_options.cuda_device = gpus.front();
    init_options.cuda_stream = stream_of(out.compute);
    MUSTER_TRY(out.context.group, new_group(context, "gpu", init_options));
  }
  return out;
}

std::string describe(const Worker& worker) {
  const Context& context = worker.context;
  const std::size_t replicas = worker.replicas.size();
  return fmt::format("{} rank{} ({}) on {}{}", context.world_size, context.world_size == 1 ? "" : "s",
                     context.group->backend(), describe(worker.compute),
                     replicas > 1 ? fmt::format(", {} replicas", replicas) : "");
}

}  // namespace muster
