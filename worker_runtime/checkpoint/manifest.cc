// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/checkpoint/manifest.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "rendezvous/base/text.h"
#include "worker_runtime/core/crc32c.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr const char* kSum = "crc32c";
constexpr int kVersion = 1;

/// Numbers are finite, and integers neither negative nor too large for `out`.
template <class T>
Result<void> get(const json& object, const char* key, T& out) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end()) return fail(ErrorCode::kCorrupt, "it has no '" + std::string(key) + "'");
  bool fits = false;
  if constexpr (std::is_same_v<T, json> || std::is_same_v<T, std::string>) {
    fits = std::is_same_v<T, json> ? found->is_object() : found->is_string();
  } else if constexpr (std::is_floating_point_v<T>) {
    fits = found->is_number() && std::isfinite(found->template get<T>());
  } else {
    fits = found->is_number_unsigned() &&
           found->template get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<T>::max()};
  }
  if (!fits) return fail(ErrorCode::kCorrupt, "its '" + std::string(key) + "' is out of range");
  out = found->template get<T>();
  return {};
}

/// The fields of TrainingState, for writing and reading.
template <class State, class Visit>
void visit(State& state, const Visit& field) {
  field("epoch", state.epoch);
  field("step", state.step);
  field("seed", state.seed);
  field("epoch_samples", state.epoch_samples);
  field("epoch_loss_sum", state.epoch_loss_sum);
  field("schedule_step", state.schedule_step);
  field("best_metric", state.best_metric);
  field("best_epoch", state.best_epoch);
  field("world_size", state.world_size);
  field("batch_size", state.batch_size);
}

Result<Manifest> parse(json text) {
  std::uint32_t sum = 0;
  MUSTER_OK(get(text, kSum, sum));
  text.erase(kSum);
  if (sum != crc32c(text.dump()))
    return fail(ErrorCode::kCorrupt, "it is damaged: its CRC-32C is another one");
  Manifest manifest;
  int version = 0;
  MUSTER_OK(get(text, "version", version));
  if (version != kVersion)
    return fail(ErrorCode::kCorrupt, "it is of version " + std::to_string(version) + ", this program reads " +
                                         std::to_string(kVersion));
  json training, optimizer, scaler, random, files;
  MUSTER_OK(get(text, "model", manifest.model));
  MUSTER_OK(get(text, "training", training));
  MUSTER_OK(get(text, "optimizer", optimizer));
  MUSTER_OK(get(text, "grad_scaler", scaler));
  MUSTER_OK(get(text, "random", random));
  MUSTER_OK(get(text, "files", files));
  Result<void> read;
  visit(manifest.training, [&](const char* key, auto& value) {
    if (read) read = get(training, key, value);
  });
  MUSTER_OK(read);
  MUSTER_OK(get(optimizer, "name", manifest.optimizer));
  MUSTER_OK(get(optimizer, "steps", manifest.optimizer_steps));
  MUSTER_OK(get(scaler, "scale", manifest.loss_scale));
  MUSTER_OK(get(scaler, "growth_tracker", manifest.growth_tracker));
  MUSTER_OK(get(random, "seed", manifest.random_seed));
  MUSTER_OK(get(random, "step", manifest.random_step));
  for (const auto& [name, entry] : files.items()) {
    FileSum& file = manifest.files[name];
    MUSTER_OK(get(entry, "size", file.size_bytes));
    MUSTER_OK(get(entry, kSum, file.crc32c));
  }
  if (manifest.training.world_size < 1 || manifest.training.batch_size < 1 || !(manifest.loss_scale > 0))
    return fail(ErrorCode::kCorrupt, "its world_size, batch_size or grad_scaler is out of range");
  return manifest;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  json training, files = json::object();
  visit(manifest.training, [&](const char* key, const auto& value) { training[key] = value; });
  for (const auto& [name, file] : manifest.files)
    files[name] = {{"size", file.size_bytes}, {kSum, file.crc32c}};
  json text = {{"version", kVersion},
               {"model", manifest.model},
               {"training", training},
               {"optimizer", {{"name", manifest.optimizer}, {"steps", manifest.optimizer_steps}}},
               {"grad_scaler", {{"scale", manifest.loss_scale}, {"growth_tracker", manifest.growth_tracker}}},
               {"random", {{"seed", manifest.random_seed}, {"step", manifest.random_step}}},
               {"files", files}};
  text[kSum] = crc32c(text.dump());
  return text.dump(2) + "\n";
}

Result<Manifest> parse_manifest(std::string_view json_text) {
  json text = json::parse(json_text.begin(), json_text.end(), nullptr, false);
  if (!text.is_object()) return fail(ErrorCode::kCorrupt, "it is no JSON object");
  auto manifest = parse(std::move(text));
  if (!manifest) return fail(ErrorCode::kCorrupt, one_line(manifest.error().message));
  return manifest;
}

}  // namespace muster
