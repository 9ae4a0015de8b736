// SPDX-License-Identifier: Apache-2.0
// Worker: what a rank trains with, by the names that a command line gives: its process group and its device.
// The ranks meet on the CPU and go on to GPUs together or not at all. What init_process_group() and
// torch.cuda.set_device() are to a PyTorch program.
#pragma once

#include <string>
#include <vector>

#include <muster/compute.h>
#include <muster/init.h>
#include <muster/result.h>

namespace muster {

struct WorkerOptions {
  std::string init_method = "env://";  ///< InitOptions'
  /// As parse_backend() takes them. Those of the CPU choose the CPU where device is auto, nccl GPUs.
  std::string backend = "auto";
  /// "auto": a GPU for every rank, or the CPU for all; "cpu"; "cuda": the GPU of the rank's number on its
  /// node; "0,3": GPU 0 for the node's local rank 0, GPU 3 for local rank 1, as CUDA_VISIBLE_DEVICES leaves
  /// them.
  std::string device = "auto";
  int local_rank = -1;  ///< -1: init()'s
  /// Devices of this one process, for DataParallel: GPUs from that of its local rank on, or CPU replicas.
  int replicas = 1;
  ComputeOptions compute = {};

  /// Whether the names are known and go together; kInvalidArgument says which does not. Asks nobody.
  [[nodiscard]] Result<void> check() const;
};

struct Worker {
  Compute compute;
  Context context;                ///< its group is the device's: NCCL's on GPUs
  std::vector<Compute> replicas;  ///< the first is `compute`
};

/// check(), init(), and the device. A collective that blocks until every rank has arrived, as init().
/// kInvalidArgument: several replicas in a world of several ranks; kNotFound: GPUs were asked for and a rank
/// cannot have them; that rank says why. Under "auto" it is a note on standard error, if any rank sees a GPU.
[[nodiscard]] Result<Worker> start_worker(const WorkerOptions& options = {});

/// "2 ranks (shm) on cpu (avx512)".
[[nodiscard]] std::string describe(const Worker& worker);

}  // namespace muster
