// SPDX-License-Identifier: Apache-2.0
// Options of fashion_mnist: its command line as a value, and which device it means by --device=auto: GPUs if
// every rank can have one, else the CPU. Pure; TrainingRun collects the facts of its rank and agrees with the
// others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <muster/dtype.h>
#include <muster/result.h>

namespace fashion {

enum class DeviceChoice { kAuto, kCpu, kCuda };

struct Options {
  int epochs = 2;
  int batch_size = 4;  // per rank
  float lr = 0.001F;
  bool scale_lr = false;
  std::string optimizer = "sgd";  // or "adamw"
  float momentum = 0.9F;
  float label_smoothing = 0;
  muster::DType amp = muster::DType::kFloat32;  // or kBFloat16, kFloat16
  std::uint64_t seed = 0;
  bool seed_given = false;
  std::string data;
  std::string model = "garment";  // or "lenet5", "mlp"
  DeviceChoice device = DeviceChoice::kAuto;
  double gpu_memory_fraction = 1;
  int logical_shards = 0;    // per step, of batch_size samples each; 0: one per rank
  std::string checkpoint;    // directory; empty: none is written
  int checkpoint_every = 0;  // steps; 0: at the end of epochs only
  std::string resume;        // empty: from the beginning
  int log_every = 1000;      // steps
};

struct ParsedOptions {
  Options options;
  std::string help;  // set where --help or --version was asked for: print and exit 0
};

/// kInvalidArgument: one line that says which flag is wrong and what it takes.
[[nodiscard]] muster::Result<ParsedOptions> parse_options(int argc, const char* const* argv);

/// What one rank sees.
struct DeviceFacts {
  int rank = 0;
  int world_size = 1;
  int gpu = 0;                    // the number of the one it would take
  int gpus = 0;                   // visible to it
  std::string nccl_problem = {};  // why groups of several ranks cannot be made on GPUs; empty: they can
};

/// Why this rank cannot train on a GPU; nothing where it can.
[[nodiscard]] std::optional<std::string> obstacle(const DeviceFacts& facts);

/// The number of this process on its node by LOCAL_RANK, or srun's SLURM_LOCALID; `otherwise` if neither is
/// set.
[[nodiscard]] int local_number(const char* local_rank, const char* slurm_local_id, int otherwise);

}  // namespace fashion
