// SPDX-License-Identifier: Apache-2.0
// The one table of environment variables that cross from the agent to a worker. The launcher writes them,
// worker programs (PyTorch's and ours) read them; --help, the README and the tests are checked against
// kEnvContract. Source: torch/distributed/elastic/agent/server/local_elastic_agent.py (_start_workers).
#pragma once

#include <array>
#include <string_view>

namespace muster::env {

inline constexpr std::string_view kRank = "RANK";
inline constexpr std::string_view kWorldSize = "WORLD_SIZE";
inline constexpr std::string_view kLocalRank = "LOCAL_RANK";
inline constexpr std::string_view kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr std::string_view kGroupRank = "GROUP_RANK";
inline constexpr std::string_view kGroupWorldSize = "GROUP_WORLD_SIZE";
inline constexpr std::string_view kRoleName = "ROLE_NAME";
inline constexpr std::string_view kRoleRank = "ROLE_RANK";
inline constexpr std::string_view kRoleWorldSize = "ROLE_WORLD_SIZE";
inline constexpr std::string_view kMasterAddr = "MASTER_ADDR";
inline constexpr std::string_view kMasterPort = "MASTER_PORT";
inline constexpr std::string_view kRestartCount = "TORCHELASTIC_RESTART_COUNT";
inline constexpr std::string_view kMaxRestarts = "TORCHELASTIC_MAX_RESTARTS";
inline constexpr std::string_view kRunId = "TORCHELASTIC_RUN_ID";
inline constexpr std::string_view kUseAgentStore = "TORCHELASTIC_USE_AGENT_STORE";
inline constexpr std::string_view kErrorFile = "TORCHELASTIC_ERROR_FILE";
inline constexpr std::string_view kNcclAsyncErrorHandling = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
inline constexpr std::string_view kOmpNumThreads = "OMP_NUM_THREADS";
inline constexpr std::string_view kSignalsToHandle = "TORCHELASTIC_SIGNALS_TO_HANDLE";
inline constexpr std::string_view kGlooInterface = "GLOO_SOCKET_IFNAME";
inline constexpr std::string_view kNcclInterface = "NCCL_SOCKET_IFNAME";
inline constexpr std::string_view kCudaOrder = "CUDA_DEVICE_ORDER";
inline constexpr std::string_view kCudaVisible = "CUDA_VISIBLE_DEVICES";
inline constexpr std::string_view kProgressFile = "MUSTER_PROGRESS_FILE";
inline constexpr std::string_view kSafePointFile = "MUSTER_SAFE_POINT_FILE";
inline constexpr std::string_view kLineage = "MUSTER_LINEAGE";

/// The job's secret, read by agents and musterd. It never crosses: workers do not get it.
inline constexpr std::string_view kSecret = "MUSTER_SECRET";

/// Who decides the value.
enum class Origin {
  kAssignment,  ///< always written, from the rank assignment
  kJob,         ///< always written, the same for every worker of the job
  kDefault,     ///< written only where the agent's own environment has none
  kNetwork,     ///< likewise, and only in jobs with a coordinator
  kGrowth,      ///< written where --join-at=safe-point asks for it
  kPlacement,   ///< written where GPUs or a placement ask for it
};

struct Variable {
  std::string_view name;
  Origin origin;
  std::string_view meaning;
};

inline constexpr std::array kEnvContract = {
    Variable{kRank, Origin::kAssignment, "global rank, 0 to WORLD_SIZE-1"},
    Variable{kWorldSize, Origin::kAssignment, "number of workers of all nodes"},
    Variable{kLocalRank, Origin::kAssignment, "rank on this node; also the GPU to use"},
    Variable{kLocalWorldSize, Origin::kAssignment, "workers on this node"},
    Variable{kGroupRank, Origin::kAssignment, "rank of this node's agent"},
    Variable{kGroupWorldSize, Origin::kAssignment, "number of agents"},
    Variable{kRoleName, Origin::kAssignment, "value of --role"},
    Variable{kRoleRank, Origin::kAssignment, "rank among the workers of this role"},
    Variable{kRoleWorldSize, Origin::kAssignment, "workers of this role"},
    Variable{kMasterAddr, Origin::kJob, "host of the workers' TCPStore"},
    Variable{kMasterPort, Origin::kJob, "port of the workers' TCPStore"},
    Variable{kRestartCount, Origin::kAssignment, "restarts used so far"},
    Variable{kMaxRestarts, Origin::kJob, "value of --max-restarts"},
    Variable{kRunId, Origin::kJob, "value of --rdzv-id"},
    Variable{kUseAgentStore, Origin::kJob,
             "True: the agent serves the store and rank 0 connects as a client"},
    Variable{kSignalsToHandle, Origin::kJob, "value of --signals-to-handle"},
    Variable{kErrorFile, Origin::kAssignment, "where a worker writes its error as JSON"},
    Variable{kProgressFile, Origin::kAssignment,
             "where a worker may write a line about its progress, which the report of a failure shows"},
    Variable{kSafePointFile, Origin::kGrowth,
             "which a worker makes when a checkpoint is whole, so that nodes can join now; removed when it "
             "may go on"},
    Variable{kLineage, Origin::kJob, "the launchers below which this process runs; they end it with the job"},
    Variable{kNcclAsyncErrorHandling, Origin::kDefault, "1: NCCL errors end the process"},
    Variable{kOmpNumThreads, Origin::kDefault,
             "with several workers on the node: each one's share of the cores"},
    Variable{kGlooInterface, Origin::kNetwork, "network interface towards the first node"},
    Variable{kNcclInterface, Origin::kNetwork, "likewise"},
    Variable{kCudaOrder, Origin::kPlacement,
             "PCI_BUS_ID on nodes with GPUs, unless set: CUDA counts as nvidia-smi does"},
    Variable{kCudaVisible, Origin::kPlacement, "the GPUs of --gpus; one with --virtual-local-rank"},
};

}  // namespace muster::env
