// SPDX-License-Identifier: Apache-2.0
// Options of fashion_mnist: its command line as a value.
#pragma once

#include <cstdint>
#include <string>

#include <muster/dtype.h>
#include <muster/result.h>

namespace fashion {

enum class DeviceChoice { kAuto, kCpu, kCuda };

struct Options {
  int epochs = 2;
  int batch_size = 4;  // per rank
  float lr = 0.001F;
  std::string optimizer = "sgd";  // or "adamw"
  float momentum = 0.9F;
  float label_smoothing = 0;
  muster::DType amp = muster::DType::kFloat32;  // or kBFloat16, kFloat16
  std::uint64_t seed = 0;
  bool seed_given = false;
  std::string data;
  std::string model = "garment";  // or "lenet5", "mlp"
  DeviceChoice device = DeviceChoice::kAuto;
  int logical_shards = 0;  // per step, of batch_size samples each; 0: one per rank
  std::string checkpoint;  // empty: none is written
  std::string resume;      // empty: from the beginning
  int log_every = 1000;    // steps
};

struct ParsedOptions {
  Options options;
  std::string help;  // set where --help or --version was asked for: print and exit 0
};

/// kInvalidArgument: one line that says which flag is wrong and what it takes.
[[nodiscard]] muster::Result<ParsedOptions> parse_options(int argc, const char* const* argv);

}  // namespace fashion
