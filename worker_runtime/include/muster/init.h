// SPDX-License-Identifier: Apache-2.0
// init(): who am I, and a process group with everybody else. The environment is muster's, torchrun's, srun's
// (MASTER_ADDR and MASTER_PORT are found out where they are not given) or set by hand; without any of it the
// world is this one process. In a Slurm task that is to be alone, RANK=0 and WORLD_SIZE=1 say so.
// MUSTER_HOST_ID (which ranks count as one host) and MUSTER_ADDRESS (where the others reach this rank)
// override what is found out.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include <muster/process_group.h>
#include <muster/store.h>

namespace muster {

enum class Backend {
  kAuto,  ///< CPU: shared memory between ranks of one host, TCP between hosts
  kShm,   ///< shared memory only: every rank on this host, else kUnsupported
  kTcp,   ///< TCP only
  /// NCCL on the GPU given by cuda_device; a world of one rank needs no NCCL. kUnsupported in a build without
  /// CUDA.
  kNccl,
};

/// "auto", "shm", "tcp", "nccl"; "gloo" is kAuto, its counterpart. kInvalidArgument: another; of "mpi" and
/// "ucc" with what to use instead.
[[nodiscard]] Result<Backend> parse_backend(std::string_view name);

struct InitOptions {
  /// "env://", "tcp://host:port?rank=R&world_size=W" (rank 0 hosts the store) or
  /// "file:///path?rank=R&world_size=W".
  std::string init_method = "env://";
  Backend backend = Backend::kAuto;
  /// For gathering, and for each later collective; 20 days at the most.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  int cuda_device = 0;
  void* cuda_stream =
      nullptr;  ///< kNccl: the compute stream (cudaStream_t) whose order the collectives respect
};

/// What init() found out. Destroy `group` before `store`, as the member order does.
struct Context {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int restart_count = 0;
  std::shared_ptr<void> hosted_server;  ///< set where this process hosts the store
  /// A view of the store for this meeting of the ranks, under "muster/<random name of the meeting>/".
  std::shared_ptr<Store> store;         ///< nullptr when world_size is 1 and nothing was configured
  std::unique_ptr<ProcessGroup> group;  ///< never nullptr
};

/// Blocks until every rank has arrived or the timeout passed (kTimeout, naming the ranks that are missing). A
/// second call while the first one's Context is there shares its server.
[[nodiscard]] Result<Context> init(const InitOptions& options = {});

/// Whether groups of several ranks can be made with this backend here: kNccl needs its library (kNotFound,
/// with what to install) and a build with CUDA (kUnsupported). Local: ranks that choose by it must agree on
/// the outcome.
[[nodiscard]] Result<void> check_backend(Backend backend);

/// A further group over the same ranks, for example a CPU group beside an NCCL one. Every rank makes its
/// groups of a `name` in the same order. A collective.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> new_group(const Context& context, std::string_view name,
                                                              const InitOptions& options);

}  // namespace muster
