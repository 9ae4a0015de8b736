// SPDX-License-Identifier: Apache-2.0
#include <muster/checkpoint.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <span>

#include <fmt/format.h>

#include <muster/safe_point.h>

#include "worker_runtime/checkpoint/arena_tensors.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/training/host_collectives.h"

namespace muster {
namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optim.safetensors";

/// What a checkpoint holds, on the host, each in the layout of the model's arenas.
struct Loaded {
  Manifest manifest;
  std::vector<float> params, buffers;
  OptimizerState optimizer;
};

Result<void> check_count(const char* file, std::size_t tensors, std::size_t expected) {
  if (tensors == expected) return {};
  return fail(ErrorCode::kMismatch,
              fmt::format("its {} has {} tensors, not {}", file, tensors, expected));
}

class DirectoryManager final : public CheckpointManager {
 public:
  DirectoryManager(std::string directory, nn::Model& model, Optimizer& optimizer, ProcessGroup& group,
                   CheckpointOptions options)
      : directory_(std::move(directory)),
        model_(&model),
        optimizer_(&optimizer),
        group_(&group),
        options_(std::move(options)) {}
  ~DirectoryManager() override { (void)DirectoryManager::wait(); }

  Result<void> start() {
    if (group_->rank() != 0 || options_.read_only) return {};
    if (auto prepared = prepare_checkpoints(directory_); !prepared)
      return fail("checkpoints", std::move(prepared).error());
    writing_ = std::async(std::launch::async, [this] { return reserve(); });
    return {};
  }

  Result<void> save(const TrainingState& state, bool is_best) override {
    if (group_->rank() != 0) return {};
    MUSTER_OK(wait());
    if (options_.read_only)
      return fail(ErrorCode::kInvalidArgument, "checkpoints " + directory_ + ": they are only read");
    if (!is_mine_ && !restorable_steps(directory_).empty())
      return fail(ErrorCode::kInvalidArgument,
                  "checkpoints " + directory_ +
                      ": they are of another run; resume from them or give another directory");
    is_mine_ = true;
    MUSTER_TRY(Manifest manifest, copy(state));
    writing_ = std::async(std::launch::async, [this, manifest = std::move(manifest), is_best] {
      return write(manifest, is_best);
    });
    if (!safe_points_wanted()) return {};
    MUSTER_OK(wait());
    announce_safe_point();
    return {};
  }

  Result<void> wait() override { return writing_.valid() ? writing_.get() : Result<void>(); }

  Result<std::optional<std::string>> latest() const override {
    const auto steps = restorable_steps(directory_);
    if (steps.empty()) return std::nullopt;
    return fmt::format("{}/{}", directory_, step_name(steps.front()));
  }

  Result<std::optional<TrainingState>> restore() override {
    const bool reads = group_->rank() == 0;
    MUSTER_OK(wait());
    Result<std::optional<Loaded>> found;
    if (reads) found = load_newest();
    // What the others get: nothing (0 bytes), the manifest and then the arenas, or that rank 0 failed (-1).
    std::string json = found && *found ? to_json((*found)->manifest) : "";
    std::int64_t size = found ? static_cast<std::int64_t>(json.size()) : -1;
    HostCollectives host(*group_, model_->compute());
    MUSTER_OK(host.broadcast({&size, 1, DType::kInt64}, 0));
    if (!found) return fail(std::move(found).error());
    if (size < 0) return fail(ErrorCode::kFailed, "checkpoints " + directory_ + ": rank 0 could not load one");
    is_mine_ = true;
    if (size == 0) return std::nullopt;
    json.resize(static_cast<std::size_t>(size));
    MUSTER_OK(host.broadcast({json.data(), json.size(), DType::kUInt8}, 0));
    Loaded loaded;
    if (reads) {
      loaded = **std::move(found);
    } else {
      MUSTER_TRY(loaded.manifest, parse_manifest(json));
    }
    loaded.optimizer.arenas.resize(optimizer_->arena_names().size());
    const auto share = [&](std::vector<float>& values, std::size_t elements) -> Result<void> {
      values.resize(elements);
      if (elements == 0) return {};
      return host.broadcast({values.data(), elements, DType::kFloat32}, 0);
    };
    MUSTER_OK(share(loaded.params, model_->arena_elements()));
    MUSTER_OK(share(loaded.buffers, model_->buffer_elements()));
    for (auto& arena : loaded.optimizer.arenas) MUSTER_OK(share(arena, model_->arena_elements()));
    return apply(loaded);
  }

 private:
  std::size_t arena_bytes() const { return model_->arena_bytes(); }
  std::size_t buffer_bytes() const { return model_->buffer_elements() * sizeof(float); }
  std::size_t state_bytes() const {
    return arena_bytes() * (1 + optimizer_->arenas().size()) + buffer_bytes();
  }
  /// Of the copy: the parameters, the optimizer's arenas, the buffers.
  std::span<const float> copied(std::size_t arena) const {
    const std::size_t elements = model_->arena_elements();
    const bool last = arena > optimizer_->arenas().size();
    return {static_cast<const float*>(memory_.get()) + arena * elements,
            last ? model_->buffer_elements() : elements};
  }

  /// Before the first save waits for it: memory that is only asked for would be given page by page.
  Result<void> reserve() {
    MUSTER_TRY(memory_, model_->compute()->allocate_host(state_bytes()));
    return {};
  }

  Result<Manifest> copy(const TrainingState& state) {
    if (memory_ == nullptr) MUSTER_OK(reserve());
    const Compute& compute = model_->compute();
    auto* to = static_cast<char*>(memory_.get());
    const auto take = [&](const float* from, std::size_t bytes) {
      compute->copy_to_host(to, from, bytes);
      to += bytes;
    };
    take(model_->params(), arena_bytes());
    for (const float* const arena : optimizer_->arenas()) take(arena, arena_bytes());
    take(model_->buffer_arena(), buffer_bytes());
    const OptimizerState optimizer = optimizer_->read_scalars();
    const nn::RandomState random = model_->read_random_state();
    MUSTER_OK(compute->status());
    return Manifest{.model = options_.model,
                    .optimizer = std::string(optimizer_->name()),
                    .training = state,
                    .optimizer_steps = optimizer.steps,
                    .loss_scale = optimizer.loss_scale,
                    .growth_tracker = optimizer.growth_tracker,
                    .random_seed = random.seed,
                    .random_step = random.step};
  }

  /// On a thread of its own.
  Result<void> write(const Manifest& manifest, bool is_best) const {
    std::vector<safetensors::TensorView> model, optimizer;
    append_tensors(model, model_->parameters(), copied(0));
    const auto names = optimizer_->arena_names();
    for (std::size_t i = 0; i < names.size(); ++i)
      append_tensors(optimizer, model_->parameters(), copied(1 + i), std::string(names[i]) + ".");
    append_tensors(model, model_->buffers(), copied(1 + names.size()));
    // PyTorch's own loaders look for the format.
    MUSTER_TRY(const safetensors::Layout model_layout, safetensors::lay_out(model, {{"format", "pt"}}));
    MUSTER_TRY(const safetensors::Layout optimizer_layout,
               safetensors::lay_out(optimizer, {{"format", "pt"}}));
    auto written = write_step(directory_, manifest,
                              {{kModelFile, safetensors::pieces_of(model, model_layout)},
                               {kOptimizerFile, safetensors::pieces_of(optimizer, optimizer_layout)}},
                              is_best, options_.keep);
    if (!written)
      return fail(fmt::format("checkpoint {} of {}", step_name(manifest.training.step), directory_),
                  std::move(written).error());
    return {};
  }

  Result<Loaded> load(std::int64_t step) const {
    MUSTER_TRY(StepContents contents, read_step(directory_, step, {kModelFile, kOptimizerFile}));
    Loaded loaded{std::move(contents.manifest), {}, {}, {}};
    const Manifest& manifest = loaded.manifest;
    MUSTER_TRY(const safetensors::FileView model, safetensors::parse(contents.files[kModelFile]));
    const std::string other =
        manifest.model == options_.model
            ? ""
            : fmt::format("it is of model '{}', this run trains '{}': ", manifest.model, options_.model);
    auto params = read_arena(model, model_->parameters(), model_->arena_elements());
    if (!params) return fail(ErrorCode::kMismatch, other + params.error().message);
    if (!other.empty()) return fail(ErrorCode::kMismatch, other + "the tensors are alike");
    loaded.params = *std::move(params);
    MUSTER_TRY(loaded.buffers, read_arena(model, model_->buffers(), model_->buffer_elements()));
    MUSTER_OK(check_count(kModelFile, model.tensors.size(),
                          model_->parameters().size() + model_->buffers().size()));
    if (manifest.optimizer != optimizer_->name())
      return fail(ErrorCode::kMismatch,
                  fmt::format("it is of optimizer {}, this run's is {}; continue with the one that wrote it",
                              manifest.optimizer, optimizer_->name()));
    MUSTER_TRY(const safetensors::FileView optimizer, safetensors::parse(contents.files[kOptimizerFile]));
    for (const std::string_view name : optimizer_->arena_names()) {
      MUSTER_TRY(auto arena, read_arena(optimizer, model_->parameters(), model_->arena_elements(),
                                        std::string(name) + "."));
      loaded.optimizer.arenas.push_back(std::move(arena));
    }
    MUSTER_OK(check_count(kOptimizerFile, optimizer.tensors.size(),
                          model_->parameters().size() * loaded.optimizer.arenas.size()));
    return loaded;
  }

  Result<std::optional<Loaded>> load_newest() const {
    std::optional<Error> first;
    const auto steps = restorable_steps(directory_);
    for (const std::int64_t step : steps) {
      auto loaded = load(step);
      if (loaded && first)
        std::fprintf(stderr, "muster: %s; the run goes on from %s\n", first->message.c_str(),
                     step_name(step).c_str());
      if (loaded) return *std::move(loaded);
      auto error = fail(fmt::format("checkpoint {} of {}", step_name(step), directory_),
                        std::move(loaded).error());
      // Of another model: so are the others, most likely, and what is in them is no damage.
      if (error.value().code == ErrorCode::kMismatch) return error;
      if (!first) first = std::move(error).value();
    }
    if (first) return fail(*std::move(first));
    return std::nullopt;
  }

  TrainingState apply(const Loaded& loaded) {
    const Manifest& manifest = loaded.manifest;
    model_->write_params(loaded.params);
    model_->write_buffers(loaded.buffers);
    OptimizerState state = loaded.optimizer;
    state.steps = manifest.optimizer_steps;
    state.loss_scale = manifest.loss_scale;
    state.growth_tracker = manifest.growth_tracker;
    optimizer_->write_state(state);
    model_->manual_seed(manifest.random_seed, manifest.random_step);
    return manifest.training;
  }

  std::string directory_;
  nn::Model* model_;
  Optimizer* optimizer_;
  ProcessGroup* group_;
  CheckpointOptions options_;
  bool is_mine_ = false;               // the directory was empty, or this run continues what is there
  std::shared_ptr<void> memory_;       // the copy of the state, while writing_ runs the thread's
  std::future<Result<void>> writing_;  // the last member: its end is waited for first
};

}  // namespace

bool TrainingState::end_epoch(double metric) {
  ++epoch;
  epoch_samples = 0;
  epoch_loss_sum = 0;
  if (metric <= best_metric) return false;
  best_metric = metric;
  best_epoch = epoch;
  return true;
}

void TrainingState::continue_with(int new_world_size, int new_batch_size) {
  const double before = static_cast<double>(world_size) * batch_size;
  const double after = static_cast<double>(new_world_size) * new_batch_size;
  schedule_step = std::llround(static_cast<double>(schedule_step) * before / after);
  world_size = new_world_size;
  batch_size = new_batch_size;
}

Result<std::unique_ptr<CheckpointManager>> CheckpointManager::create(const std::string& directory,
                                                                     nn::Model& model, Optimizer& optimizer,
                                                                     ProcessGroup& group,
                                                                     const CheckpointOptions& options) {
  if (options.keep < 1)
    return fail(ErrorCode::kInvalidArgument, fmt::format("keep {} checkpoints: it is at least 1", options.keep));
  auto made = std::make_unique<DirectoryManager>(directory, model, optimizer, group, options);
  MUSTER_OK(made->start());
  return made;
}

}  // namespace muster
