// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <span>

#include <fmt/format.h>

#include <muster/checkpoint.h>
#include <muster/progress.h>
#include <muster/safe_point.h>

#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/fail.h"
#include "worker_runtime/checkpoint/safetensors.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/training/host_collectives.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optim.safetensors";

/// What a checkpoint holds, on the host, each in the layout of the model's arenas.
struct Loaded {
  Manifest manifest;
  std::vector<float> params, buffers;
  OptimizerState optimizer;
};

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
    auto lock = prepare_checkpoints(directory_);
    if (!lock) return fail("checkpoints", std::move(lock).error());
    lock_ = *std::move(lock);
    // Before the first save waits for it: memory that is only asked for would be given page by page.
    writing_ = std::async([this] { return reserve(); });
    return {};
  }

  Result<void> save(const TrainingState& state, bool is_best) override {
    Progress().pause("checkpoint");  // also of a rank that soon waits for rank 0: no hang is seen in it
    if (group_->rank() != 0) return {};
    MUSTER_OK(wait());
    if (!std::isfinite(state.best_metric) || !std::isfinite(state.epoch_loss_sum))
      return invalid("checkpoints: best_metric or epoch_loss_sum is not finite");
    if (options_.read_only) return invalid("checkpoints {}: they are only read", directory_);
    if (!is_mine_ && !restorable_steps(directory_).empty())
      return invalid("checkpoints {}: they are of another run; resume from them or give another directory",
                     directory_);
    is_mine_ = true;
    if (memory_ == nullptr) MUSTER_OK(reserve());  // there was none before
    MUSTER_TRY(Manifest manifest, copy(state));
    // Where no thread can be had, wait() writes.
    writing_ =
        std::async([this, manifest = std::move(manifest), is_best] { return write(manifest, is_best); });
    if (std::getenv(std::string(env::kSafePointFile).c_str()) == nullptr) return {};
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
    Result<std::optional<Loaded>> found;
    if (auto idle = wait(); !idle)
      found = fail(std::move(idle).error());
    else if (reads)
      found = load_newest();
    // What the others get: nothing (0 bytes), the manifest and then the arenas, or that rank 0 failed (-1).
    std::string json = found && *found ? to_text((*found)->manifest) : "";
    std::int64_t size = found ? static_cast<std::int64_t>(json.size()) : -1;
    HostCollectives host(*group_, model_->compute());
    MUSTER_OK(host.broadcast({&size, 1, DType::kInt64}, 0));
    if (!found) return fail(std::move(found).error());
    if (size < 0)
      return fail(ErrorCode::kFailed, "checkpoints " + directory_ + ": rank 0 could not load one");
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
    model_->write_params(loaded.params);
    model_->write_buffers(loaded.buffers);
    loaded.optimizer.steps = loaded.manifest.optimizer_steps;
    loaded.optimizer.loss_scale = loaded.manifest.loss_scale;
    loaded.optimizer.growth_tracker = loaded.manifest.growth_tracker;
    optimizer_->write_state(loaded.optimizer);
    model_->manual_seed(loaded.manifest.random_seed, loaded.manifest.random_step);
    return loaded.manifest.training;
  }

 private:
  /// One of the model's or optimizer's, and where its copy is.
  struct Arena {
    const float* device;
    float* host;
    std::size_t elements;
  };
  struct File {
    const char* name;
    std::vector<safetensors::TensorView> tensors = {};  // of the copy
    safetensors::Layout layout = {};
  };

  Result<void> reserve() {
    const std::size_t elements = model_->arena_elements(), buffers = model_->buffer_elements();
    const auto optimizer = optimizer_->arenas();
    const std::size_t all = elements * (1 + optimizer.size()) + buffers;
    MUSTER_TRY(std::shared_ptr<void> memory, model_->compute()->allocate_host(all * sizeof(float)));
    auto* host = static_cast<float*>(memory.get());
    const auto add = [&](File& file, const std::vector<nn::Parameter>& parameters, Arena arena,
                         const std::string& prefix = "") {
      safetensors::append_tensors(file.tensors, parameters, {arena.host, arena.elements}, prefix);
      arenas_.push_back(arena);
      host += arena.elements;
    };
    File &model = files_[0], &state = files_[1];
    add(model, model_->parameters(), {model_->params(), host, elements});
    add(model, model_->buffers(), {model_->buffer_arena(), host, buffers});
    for (std::size_t i = 0; i < optimizer.size(); ++i)
      add(state, model_->parameters(), {optimizer[i], host, elements},
          std::string(optimizer_->arena_names()[i]) + ".");
    for (File& file : files_) {
      // PyTorch's own loaders look for the format.
      MUSTER_TRY(file.layout, safetensors::lay_out(file.tensors, {{"format", "pt"}}));
    }
    memory_ = std::move(memory);
    return {};
  }

  Result<Manifest> copy(const TrainingState& state) {
    const Compute& compute = model_->compute();
    for (const Arena& arena : arenas_)
      compute->copy_to_host(arena.host, arena.device, arena.elements * sizeof(float));
    StepState optimizer;
    compute->copy_to_host(&optimizer, optimizer_->step_state(), sizeof optimizer);
    if (!optimizer_->has_grad_scaler()) optimizer.loss_scale = 0;
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
    const std::span params(arenas_.front().host, arenas_.front().elements);
    const bool is_finite = std::ranges::all_of(params, [](float value) { return std::isfinite(value); });
    if (!is_finite)
      return fail(ErrorCode::kFailed,
                  fmt::format("checkpoint {} of {}: not written, for a parameter is not finite; try a lower "
                              "learning rate",
                              step_name(manifest.training.step), directory_));
    StepFiles files;
    for (const File& file : files_) files[file.name] = safetensors::pieces_of(file.tensors, file.layout);
    auto written = write_step(directory_, manifest, files, is_best, options_.keep);
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
    auto params = safetensors::read_arena(model, model_->parameters(), model_->arena_elements());
    if (!params) return fail(ErrorCode::kMismatch, other + params.error().message);
    if (!other.empty()) return fail(ErrorCode::kMismatch, other + "the tensors are alike");
    loaded.params = *std::move(params);
    MUSTER_TRY(loaded.buffers, safetensors::read_arena(model, model_->buffers(), model_->buffer_elements()));
    if (model.tensors.size() != model_->parameters().size() + model_->buffers().size())
      return fail(ErrorCode::kMismatch, "it has tensors that are none of the model's");
    if (manifest.optimizer != optimizer_->name())
      return fail(ErrorCode::kMismatch,
                  fmt::format("it is of optimizer {}, this run's is {}; continue with the one that wrote it",
                              manifest.optimizer, optimizer_->name()));
    MUSTER_TRY(const safetensors::FileView optimizer, safetensors::parse(contents.files[kOptimizerFile]));
    for (const std::string_view name : optimizer_->arena_names()) {
      MUSTER_TRY(auto arena, safetensors::read_arena(optimizer, model_->parameters(),
                                                     model_->arena_elements(), std::string(name) + "."));
      loaded.optimizer.arenas.push_back(std::move(arena));
    }
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
      auto error =
          fail(fmt::format("checkpoint {} of {}", step_name(step), directory_), std::move(loaded).error());
      // Of another model: so are the others, most likely, and what is in them is no damage.
      if (error.value().code == ErrorCode::kMismatch) return error;
      if (!first) first = std::move(error).value();
    }
    if (first) return fail(*std::move(first));
    return std::nullopt;
  }

  std::string directory_;
  nn::Model* model_;
  Optimizer* optimizer_;
  ProcessGroup* group_;
  UniqueFd lock_;
  CheckpointOptions options_;
  bool is_mine_ = false;  // the directory was empty, or this run continues what is there
  // The thread's while writing_ runs:
  std::shared_ptr<void> memory_;  // the copy of all arenas
  std::vector<Arena> arenas_;
  std::array<File, 2> files_{{{kModelFile}, {kOptimizerFile}}};
  std::future<Result<void>> writing_;  // the last member: its end is waited for first
};

}  // namespace

bool TrainingState::end_epoch(double metric) {
  ++epoch;
  epoch_samples = 0;
  epoch_loss_sum = 0;
  if (std::isnan(metric) || (best_epoch != 0 && metric <= best_metric)) return false;
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
  if (options.keep < 1) return invalid("keep {} checkpoints: it is at least 1", options.keep);
  auto made = std::make_unique<DirectoryManager>(directory, model, optimizer, group, options);
  MUSTER_OK(made->start());
  return made;
}

Result<Resumed> resume(nn::Model& model, Optimizer& optimizer, ProcessGroup& group,
                       const ResumeOptions& options) {
  Resumed out;
  out.state.seed = options.seed.value_or(0);
  out.state.world_size = group.world_size();
  // With logical shards a step has as many samples in any world.
  const int shards = options.logical_shards, world = group.world_size(),
            batch = shards == 0 ? options.batch_size : options.batch_size * (shards / world);
  out.state.batch_size = batch;
  const auto open = [&](const std::string& directory, bool read_only) {
    return CheckpointManager::create(directory, model, optimizer, group,
                                     {.model = options.model, .read_only = read_only});
  };
  if (!options.checkpoint.empty()) {
    MUSTER_TRY(out.checkpoints, open(options.checkpoint, false));
  }
  const auto named = [](const std::string& directory) {
    return fs::path(directory + "/").lexically_normal();
  };
  const bool in_place = out.checkpoints != nullptr && named(options.resume) == named(options.checkpoint);
  if (out.checkpoints != nullptr && !in_place && group.rank() == 0) {
    MUSTER_TRY(const auto latest, out.checkpoints->latest());
    if (latest)
      return invalid("{} is there: another run's; continue it with --resume={}, or give another --checkpoint",
                     *latest, options.checkpoint);
  }
  if (options.resume.empty()) return out;
  std::unique_ptr<CheckpointManager> others;
  if (!in_place) {
    MUSTER_TRY(others, open(options.resume, true));
  }
  MUSTER_TRY(const auto saved, (in_place ? out.checkpoints : others)->restore());
  if (!saved && in_place) return out;
  if (!saved) return fail(ErrorCode::kNotFound, "no checkpoint in " + options.resume);
  if (options.seed && saved->seed != *options.seed)
    return invalid("checkpoint {} was trained with --seed {}, not {}; leave --seed out or give the same",
                   options.resume, saved->seed, *options.seed);
  const bool other_step = 1.0 * saved->world_size * saved->batch_size != 1.0 * world * batch;
  if (group.rank() == 0 && (other_step || (shards == 0 && saved->world_size != world)))
    std::fprintf(
        stderr,
        "muster: note: the checkpoint is of %d ranks with batches of %d, this run has %d with %d; it "
        "continues, but not as the uninterrupted run would\n",
        saved->world_size, saved->batch_size, world, batch);
  out.state = *saved;
  out.state.continue_with(world, batch);
  return out;
}

}  // namespace muster
