// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "rendezvous/base/text.h"
#include "worker_runtime/core/crc32c.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr int kDepth = 4;  // of objects in objects

/// Nothing deeper than it may be, and fractions only where they belong: what this returns converts.
json parse_json(std::string_view text) {
  std::string key;
  bool fits = true;
  const auto look = [&](int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::key) key = value;
    const bool fraction = key == "epoch_loss_sum" || key == "best_metric" || key == "loss_scale";
    if (depth > kDepth || (value.is_number_float() && !fraction)) fits = false;
    return fits;
  };
  json parsed = json::parse(text.begin(), text.end(), look, false);
  return fits ? parsed : json();
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FileSum, size_bytes, crc32c)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingState, epoch, step, seed, epoch_samples, epoch_loss_sum,
                                   schedule_step, best_metric, best_epoch, world_size, batch_size)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Manifest, model, optimizer, training, optimizer_steps, loss_scale,
                                   growth_tracker, random_seed, random_step, files)

std::string to_text(const Manifest& manifest) {
  json text = manifest;
  text["version"] = kVersion;
  text["crc32c"] = crc32c(text.dump());
  return text.dump(2) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text) {
  try {
    const json parsed = parse_json(text);
    if (const int version = parsed.at("version"); version != kVersion)
      return fail(ErrorCode::kCorrupt, "it is of version " + std::to_string(version) +
                                           ", this program reads " + std::to_string(kVersion));
    auto manifest = parsed.get<Manifest>();
    // Byte for byte what this program writes, the CRC-32C included.
    if (to_text(manifest) != text) return fail(ErrorCode::kCorrupt, "it is damaged");
    const TrainingState& training = manifest.training;
    if (training.step < 0 || training.epoch < 0 || training.epoch_samples < 0 || training.world_size < 1 ||
        training.batch_size < 1 || manifest.growth_tracker < 0 || !(manifest.loss_scale > 0))
      return fail(ErrorCode::kCorrupt, "a number is out of range");
    return manifest;
  } catch (const json::exception& error) {
    return fail(ErrorCode::kCorrupt, "it is damaged: " + one_line(error.what()));
  }
}

}  // namespace muster
