// SPDX-License-Identifier: Apache-2.0
// The only file of the example that pays for CLI11.
#include "worker_runtime/examples/fashion_options.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

#include <CLI/CLI.hpp>

#include <muster/datasets.h>

namespace fashion {

muster::Result<ParsedOptions> parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  Options& o = parsed.options;
  o.data = muster::kFashionMnistDirectory;
  CLI::App app(
      "Trains a small network on FashionMNIST, data-parallel over all ranks.\n"
      "Alone:        fashion_mnist --epochs 1\n"
      "Two workers:  muster --standalone --nproc-per-node=2 fashion_mnist --epochs 1",
      "fashion_mnist");
  app.option_defaults()->always_capture_default();
  const std::map<std::string, DeviceChoice> devices{
      {"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}};
  std::string device = "auto";
  std::string amp = "off";
  std::string seed_text = "0";
  constexpr int kMax = 1'000'000'000;
  app.add_option("--epochs", o.epochs, "passes over the training set in all, those of a resumed run included")
      ->check(CLI::Range(0, kMax));
  app.add_option("--batch-size", o.batch_size, "samples per step and rank")->check(CLI::Range(1, 65536));
  app.add_option("--lr", o.lr, "learning rate")->check(CLI::Range(0.0, 1e6));
  app.add_option("--optimizer", o.optimizer, "sgd or adamw")->check(CLI::IsMember({"sgd", "adamw"}));
  app.add_option("--momentum", o.momentum, "momentum of sgd")->check(CLI::Range(0.0, 1.0));
  app.add_option("--label-smoothing", o.label_smoothing, "part of each label that is spread over all classes")
      ->check(CLI::Range(0.0, 1.0));
  CLI::Option* seed =
      app.add_option("--seed", seed_text, "of the initial weights and the order of the samples");
  app.add_option("--data", o.data, "directory of the IDX files, plain or .gz");
  app.add_option("--model", o.model, "garment (convolutions), lenet5 or mlp")
      ->check(CLI::IsMember({"garment", "lenet5", "mlp"}));
  app.add_option("--amp", amp, "mixed precision: fp16 with a gradient scaler")
      ->check(CLI::IsMember({"off", "bf16", "fp16"}));
  app.add_option("--device", device, "auto: GPUs where there is one per rank")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--gpu-memory-fraction", o.gpu_memory_fraction,
                 "above 0: the part of the device's memory that parameters, gradients, activations and data "
                 "may take");
  app.add_option(
         "--logical-shards", o.logical_shards,
         "a power of two: batches of --batch-size per step over all ranks, which then does not depend on "
         "their number, to the last bit; 0: one per rank")
      ->check(CLI::Range(0, 65536));
  app.add_option("--checkpoint", o.checkpoint,
                 "file that rank 0 replaces after each epoch, and where SIGTERM stops the run");
  app.add_option("--resume", o.resume, "checkpoint to continue from");
  app.add_option("--log-every", o.log_every, "steps over which the printed training loss is averaged")
      ->check(CLI::Range(1, kMax));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    parsed.help = app.help();
    return parsed;
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    for (char& c : text)
      if (c == '\n') c = ' ';
    return muster::fail(muster::ErrorCode::kInvalidArgument, text + "; see fashion_mnist --help");
  }
  // CLI11's ranges let NaN through: it is not below the minimum.
  for (const auto& [flag, value] : {std::pair("--lr", o.lr), std::pair("--momentum", o.momentum),
                                    std::pair("--label-smoothing", o.label_smoothing)})
    if (!std::isfinite(value))
      return muster::fail(muster::ErrorCode::kInvalidArgument,
                          std::string(flag) + ": not a finite number; see fashion_mnist --help");
  if (!(o.gpu_memory_fraction > 0 && o.gpu_memory_fraction <= 1))
    return muster::fail(muster::ErrorCode::kInvalidArgument,
                        "--gpu-memory-fraction: not above 0 and at most 1; see fashion_mnist --help");
  // CLI11 2.1 would read -1 as 2^64 - 1.
  const auto [end, code] = std::from_chars(seed_text.data(), seed_text.data() + seed_text.size(), o.seed);
  if (code != std::errc() || end != seed_text.data() + seed_text.size())
    return muster::fail(
        muster::ErrorCode::kInvalidArgument,
        "--seed: '" + seed_text + "' is not a number from 0 to 2^64-1; see fashion_mnist --help");
  o.device = devices.at(device);
  o.amp = amp == "off"    ? muster::DType::kFloat32
          : amp == "bf16" ? muster::DType::kBFloat16
                          : muster::DType::kFloat16;
  o.seed_given = seed->count() > 0;
  return parsed;
}

std::optional<std::string> obstacle(const DeviceFacts& facts) {
  const std::string who = "rank " + std::to_string(facts.rank);
  if (facts.gpus == 0) return who + " sees no GPU";
  if (facts.gpu >= facts.gpus)
    return who + " would take GPU " + std::to_string(facts.gpu) + " and sees " + std::to_string(facts.gpus) +
           ": a GPU per rank is needed";
  if (facts.world_size > 1 && !facts.nccl_problem.empty()) return who + ": " + facts.nccl_problem;
  return std::nullopt;
}

int local_number(const char* local_rank, const char* slurm_local_id, int otherwise) {
  for (const char* text : {local_rank, slurm_local_id})
    if (text != nullptr && *text != '\0') return static_cast<int>(std::strtol(text, nullptr, 10));
  return otherwise;
}

}  // namespace fashion
