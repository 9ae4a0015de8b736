// SPDX-License-Identifier: Apache-2.0
// The tensors of a model's arenas in safetensors files: checkpoints and state dicts.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <muster/checkpoint.h>
#include <muster/state_dict.h>

#include "rendezvous/base/syscall.h"
#include "worker_runtime/core/atomic_file.h"
#include "worker_runtime/core/sha256.h"
#include "worker_runtime/training/host_collectives.h"
#include "worker_runtime/training/safetensors.h"

namespace muster {
namespace {

constexpr std::string_view kFormat = "muster-checkpoint-1";
constexpr std::string_view kFormatWithinEpoch = "muster-checkpoint-2";  // has epoch_samples, epoch_loss_sum
constexpr std::string_view kDigestKey = "sha256";
constexpr std::size_t kMaxModelFileBytes = std::size_t{64} << 30;  // a larger file is no model's
constexpr const char* kArenasKey = "optimizer_arenas";  // "exp_avg,exp_avg_sq"; without: "momentum"

std::string joined(std::span<const std::string_view> names) {
  return fmt::format("{}", fmt::join(names, ","));
}

/// "6x1x5x5".
std::string shape_text(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

/// Adds a view of each parameter (or buffer) as prefix + name; `arena` outlives them.
void append_tensors(std::vector<safetensors::TensorView>& tensors,
                    const std::vector<nn::Parameter>& parameters, std::span<const float> arena,
                    const std::string& prefix = "") {
  for (const nn::Parameter& parameter : parameters) {
    const auto values = arena.subspan(parameter.offset, parameter.count);
    tensors.push_back({prefix + parameter.name,
                       DType::kFloat32,
                       parameter.shape,
                       {reinterpret_cast<const char*>(values.data()), values.size_bytes()}});
  }
}

/// Copies the tensors prefix + name into an arena of `elements`. kMismatch: one is missing, or is not F32 of
/// the parameter's shape.
Result<std::vector<float>> read_arena(const safetensors::FileView& file,
                                      const std::vector<nn::Parameter>& parameters, std::size_t elements,
                                      const std::string& prefix = "") {
  std::vector<float> arena(elements, 0.0F);
  for (const nn::Parameter& parameter : parameters) {
    const std::string name = prefix + parameter.name;
    const safetensors::TensorView* tensor = file.find(name);
    if (tensor == nullptr)
      return fail(ErrorCode::kMismatch,
                  "it has no tensor '" + name + "'; these are the weights of another model");
    if (tensor->dtype != DType::kFloat32 || tensor->shape != parameter.shape)
      return fail(ErrorCode::kMismatch,
                  "tensor '" + name + "' is " + std::string(to_string(tensor->dtype)) + " " +
                      shape_text(tensor->shape) + ", the model's is F32 " + shape_text(parameter.shape) +
                      (tensor->shape == parameter.shape ? "; save it as F32"
                                                        : "; these are the weights of another model"));
    std::memcpy(arena.data() + parameter.offset, tensor->bytes.data(), tensor->bytes.size());
  }
  return arena;
}

template <class Number>
std::string to_text(Number value) {
  std::array<char, 64> buffer{};
  const auto [end, code] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), end};
}

template <class Number>
Result<void> read_number(const safetensors::Metadata& metadata, const std::string& key, Number& out) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return fail(ErrorCode::kCorrupt, "it has no '" + key + "'");
  const std::string& text = found->second;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (code != std::errc() || end != text.data() + text.size())
    return fail(ErrorCode::kCorrupt, "its '" + key + "' is not a number");
  return {};
}

Result<TrainingState> read_state(const safetensors::Metadata& metadata) {
  TrainingState state;
  if (const auto model = metadata.find("model"); model != metadata.end()) state.model = model->second;
  MUSTER_OK(read_number(metadata, "epoch", state.epoch));
  MUSTER_OK(read_number(metadata, "step", state.step));
  MUSTER_OK(read_number(metadata, "seed", state.seed));
  MUSTER_OK(read_number(metadata, "best_accuracy", state.best_accuracy));
  MUSTER_OK(read_number(metadata, "best_epoch", state.best_epoch));
  MUSTER_OK(read_number(metadata, "world_size", state.world_size));
  MUSTER_OK(read_number(metadata, "batch_size", state.batch_size));
  if (metadata.at("format") == kFormatWithinEpoch) {
    MUSTER_OK(read_number(metadata, "epoch_samples", state.epoch_samples));
    MUSTER_OK(read_number(metadata, "epoch_loss_sum", state.epoch_loss_sum));
    if (state.epoch_samples < 1 || !std::isfinite(state.epoch_loss_sum))
      return fail(ErrorCode::kCorrupt, "its epoch_samples or epoch_loss_sum is out of range");
  }
  if (state.epoch < 0 || state.step < 0 || !std::isfinite(state.best_accuracy) || state.world_size < 1 ||
      state.batch_size < 1)
    return fail(ErrorCode::kCorrupt,
                "its epoch, step, best_accuracy, world_size or batch_size is out of range");
  return state;
}

Result<void> write_tensors(const std::string& path, const std::vector<safetensors::TensorView>& tensors,
                           const safetensors::Metadata& metadata) {
  MUSTER_TRY(const safetensors::Layout layout, safetensors::lay_out(tensors, metadata));
  std::vector<std::string_view> pieces{layout.header};
  for (const std::size_t i : layout.order) pieces.push_back(tensors[i].bytes);
  return write_file_atomically(path, pieces);
}

/// Over everything that counts: the metadata, and the tensors' bytes in file order. Names, shapes and places
/// are checked against the model.
std::string digest_of(const safetensors::Metadata& metadata,
                      const std::vector<safetensors::TensorView>& tensors,
                      const std::vector<std::size_t>& order) {
  std::vector<std::string_view> pieces;
  for (const auto& [key, value] : metadata)
    if (key != kDigestKey) pieces.insert(pieces.end(), {key, "=", value, "\n"});
  for (const std::size_t i : order) pieces.push_back(tensors[i].bytes);
  return sha256(pieces);
}

Result<void> read_optimizer(const safetensors::FileView& file, const nn::Model& model,
                            Checkpoint& checkpoint) {
  OptimizerState& optimizer = checkpoint.optimizer;
  std::string names = "momentum";
  if (const auto found = file.metadata.find(kArenasKey); found != file.metadata.end()) {
    names = found->second;
    MUSTER_OK(read_number(file.metadata, "optimizer_steps", optimizer.steps));
    MUSTER_OK(read_number(file.metadata, "loss_scale", optimizer.loss_scale));
    MUSTER_OK(read_number(file.metadata, "growth_tracker", optimizer.growth_tracker));
    MUSTER_OK(read_number(file.metadata, "random_step", checkpoint.random_step));
    MUSTER_OK(read_number(file.metadata, "random_seed", checkpoint.random_seed));
    if (optimizer.steps < 0 || optimizer.growth_tracker < 0 || !std::isfinite(optimizer.loss_scale) ||
        optimizer.loss_scale <= 0)
      return fail(ErrorCode::kCorrupt, "its optimizer_steps, loss_scale or growth_tracker is out of range");
  }
  for (std::string_view rest = names; !rest.empty();) {
    const std::string name(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    MUSTER_TRY(std::vector<float> arena,
               read_arena(file, model.parameters(), model.arena_elements(), name + "."));
    checkpoint.arena_names.push_back(name);
    optimizer.arenas.push_back(std::move(arena));
  }
  return {};
}

Result<Checkpoint> parse_checkpoint(std::string_view bytes, const nn::Model& model,
                                    const std::string& model_name) {
  MUSTER_TRY(const safetensors::FileView file, safetensors::parse(bytes));
  const auto format = file.metadata.find("format");
  if (format == file.metadata.end() || (format->second != kFormat && format->second != kFormatWithinEpoch))
    return fail(ErrorCode::kCorrupt,
                "a safetensors file, but not a checkpoint of this program (metadata 'format' is neither " +
                    std::string(kFormat) + " nor " + std::string(kFormatWithinEpoch) + ")");
  Checkpoint checkpoint;
  MUSTER_TRY(checkpoint.state, read_state(file.metadata));
  const std::string other = checkpoint.state.model == model_name
                                ? ""
                                : "it is a checkpoint of model '" + checkpoint.state.model +
                                      "', this run trains '" + model_name + "': ";
  auto params = read_arena(file, model.parameters(), model.arena_elements());
  if (!params) return fail(ErrorCode::kMismatch, other + params.error().message);
  if (!other.empty()) return fail(ErrorCode::kMismatch, other + "the tensors are alike");
  checkpoint.params = *std::move(params);
  MUSTER_TRY(checkpoint.buffers, read_arena(file, model.buffers(), model.buffer_elements()));
  std::size_t expected = model.parameters().size() + model.buffers().size();
  if (checkpoint.state.step > 0) {
    MUSTER_OK(read_optimizer(file, model, checkpoint));
    expected += checkpoint.arena_names.size() * model.parameters().size();
  }
  if (file.tensors.size() != expected)
    return fail(ErrorCode::kMismatch, "it has " + std::to_string(file.tensors.size()) +
                                          " tensors, the model " + std::to_string(expected));
  std::vector<std::size_t> order(file.tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto stored = file.metadata.find(std::string(kDigestKey));
  if (stored == file.metadata.end() || stored->second != digest_of(file.metadata, file.tensors, order))
    return fail(ErrorCode::kCorrupt, "it is damaged: its SHA-256 is another one");
  return checkpoint;
}

Result<Checkpoint> checked(const std::string& path, std::string_view bytes, const nn::Model& model,
                           const std::string& model_name) {
  auto checkpoint = parse_checkpoint(bytes, model, model_name);
  if (!checkpoint) return fail("checkpoint " + path, std::move(checkpoint).error());
  return checkpoint;
}

Result<void> load(std::string_view bytes, nn::Model& model) {
  MUSTER_TRY(const safetensors::FileView file, safetensors::parse(bytes));
  MUSTER_TRY(const std::vector<float> params, read_arena(file, model.parameters(), model.arena_elements()));
  MUSTER_TRY(const std::vector<float> buffers, read_arena(file, model.buffers(), model.buffer_elements()));
  const auto is_in = [](const std::vector<nn::Parameter>& list, std::string_view name) {
    return std::any_of(list.begin(), list.end(), [&](const nn::Parameter& p) { return p.name == name; });
  };
  for (const auto& [name, dtype, shape, data] : file.tensors)
    if (!name.ends_with(".num_batches_tracked") && !is_in(model.parameters(), name) &&
        !is_in(model.buffers(), name))
      return fail(ErrorCode::kMismatch,
                  "its tensor '" + name + "' is none of the model's; these are the weights of another model");
  model.write_params(params);
  model.write_buffers(buffers);
  return {};
}

}  // namespace

Result<void> save_checkpoint(const std::string& path, const nn::Model& model, const Optimizer& optimizer,
                             const TrainingState& state) {
  const std::vector<float> params = model.read_params();
  const OptimizerState optimizer_state = state.step > 0 ? optimizer.read_state() : OptimizerState{};
  const std::vector<float> buffers = model.read_buffers();
  std::vector<safetensors::TensorView> tensors;
  append_tensors(tensors, model.parameters(), params);
  for (std::size_t i = 0; i < optimizer_state.arenas.size(); ++i)
    append_tensors(tensors, model.parameters(), optimizer_state.arenas[i],
                   std::string(optimizer.arena_names()[i]) + ".");
  append_tensors(tensors, model.buffers(), buffers);
  const bool within_epoch = state.epoch_samples > 0;
  safetensors::Metadata metadata{{"format", std::string(within_epoch ? kFormatWithinEpoch : kFormat)},
                                 {"model", state.model},
                                 {"epoch", to_text(state.epoch)},
                                 {"step", to_text(state.step)},
                                 {"seed", to_text(state.seed)},
                                 {"best_accuracy", to_text(state.best_accuracy)},
                                 {"best_epoch", to_text(state.best_epoch)},
                                 {"world_size", to_text(state.world_size)},
                                 {"batch_size", to_text(state.batch_size)}};
  if (within_epoch) {
    metadata.emplace("epoch_samples", to_text(state.epoch_samples));
    metadata.emplace("epoch_loss_sum", to_text(state.epoch_loss_sum));
  }
  if (state.step > 0) {
    metadata.emplace(kArenasKey, joined(optimizer.arena_names()));
    metadata.emplace("optimizer_steps", to_text(optimizer_state.steps));
    metadata.emplace("loss_scale", to_text(optimizer_state.loss_scale));
    metadata.emplace("growth_tracker", to_text(optimizer_state.growth_tracker));
    const nn::RandomState random = model.read_random_state();
    metadata.emplace("random_step", to_text(random.step));
    metadata.emplace("random_seed", to_text(random.seed));
  }
  // The digest is part of the header; the order of the data does not depend on the metadata.
  MUSTER_TRY(const safetensors::Layout without_digest, safetensors::lay_out(tensors, metadata));
  metadata.emplace(kDigestKey, digest_of(metadata, tensors, without_digest.order));
  if (auto written = write_tensors(path, tensors, metadata); !written)
    return fail("checkpoint", std::move(written).error());
  return {};
}

Result<Checkpoint> load_checkpoint(const std::string& path, const nn::Model& model,
                                   const std::string& model_name) {
  auto bytes = read_file(path, kMaxModelFileBytes);
  if (!bytes) return fail("checkpoint", std::move(bytes).error());
  return checked(path, *bytes, model, model_name);
}

Result<TrainingState> restore_checkpoint(const std::string& path, const std::string& model_name,
                                         nn::Model& model, Optimizer& optimizer, ProcessGroup& group) {
  // The others get the file's bytes, once rank 0 has found nothing wrong with them.
  HostCollectives host(group, model.compute());
  Result<std::string> bytes;
  Result<Checkpoint> loaded;
  if (group.rank() == 0) {
    bytes = read_file(path, kMaxModelFileBytes);
    loaded = bytes ? checked(path, *bytes, model, model_name)
                   : Result<Checkpoint>(fail("checkpoint", bytes.error()));
    const auto names = optimizer.arena_names();
    if (loaded && !loaded->arena_names.empty() &&
        !std::equal(names.begin(), names.end(), loaded->arena_names.begin(), loaded->arena_names.end()))
      loaded = fail(ErrorCode::kMismatch, "checkpoint " + path + ": it is of an optimizer with " +
                                              loaded->arena_names.front() + ", this run's has " +
                                              joined(names) + "; continue with the optimizer that wrote it");
  }
  std::int64_t size = group.rank() == 0 && loaded ? static_cast<std::int64_t>(bytes->size()) : 0;
  MUSTER_OK(host.broadcast({&size, 1, DType::kInt64}, 0));
  if (!loaded) return fail(std::move(loaded).error());
  if (size == 0) return fail(ErrorCode::kFailed, "checkpoint " + path + ": rank 0 could not load it");
  bytes->resize(static_cast<std::size_t>(size));
  MUSTER_OK(host.broadcast({bytes->data(), bytes->size(), DType::kUInt8}, 0));
  if (group.rank() != 0) {
    MUSTER_TRY(loaded, checked(path, *bytes, model, model_name));
  }
  model.write_params(loaded->params);
  model.write_buffers(loaded->buffers);
  optimizer.write_state(loaded->optimizer);
  model.manual_seed(loaded->random_seed, loaded->random_step);
  return loaded->state;
}

Result<void> check_checkpoint_path(const std::string& path) {
  return check_can_write(path);
}

Result<void> save_state_dict(const std::string& path, const nn::Model& model) {
  const std::vector<float> params = model.read_params(), buffers = model.read_buffers();
  std::vector<safetensors::TensorView> tensors;
  append_tensors(tensors, model.parameters(), params);
  append_tensors(tensors, model.buffers(), buffers);
  // PyTorch's own loaders look for the format.
  if (auto written = write_tensors(path, tensors, {{"format", "pt"}}); !written)
    return fail("state dict", std::move(written).error());
  return {};
}

Result<void> load_state_dict(const std::string& path, nn::Model& model) {
  auto bytes = read_file(path, kMaxModelFileBytes);
  if (!bytes) return fail("state dict", std::move(bytes).error());
  if (auto loaded = load(*bytes, model); !loaded)
    return fail("state dict " + path, std::move(loaded).error());
  return {};
}

}  // namespace muster
