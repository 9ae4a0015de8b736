// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <fmt/format.h>

#include <muster/checkpoint.h>

namespace muster {

Result<Resumed> resume(nn::Model& model, Optimizer& optimizer, ProcessGroup& group,
                       const ResumeOptions& options) {
  Resumed out;
  out.state.seed = options.seed.value_or(0);
  out.state.world_size = group.world_size();
  out.state.batch_size = options.batch_size;
  const auto open = [&](const std::string& directory, bool read_only) {
    return CheckpointManager::create(directory, model, optimizer, group,
                                     {.model = options.model, .read_only = read_only});
  };
  if (!options.checkpoint.empty()) {
    MUSTER_TRY(out.checkpoints, open(options.checkpoint, false));
  }
  const bool in_place = options.resume == options.checkpoint;
  if (out.checkpoints != nullptr && !in_place && group.rank() == 0) {
    MUSTER_TRY(const auto latest, out.checkpoints->latest());
    if (latest)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is there: another run's; continue it with --resume={}, or give another "
                              "--checkpoint",
                              *latest, options.checkpoint));
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
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("checkpoint {} was trained with --seed {}, not {}; leave --seed out or give the same",
                    options.resume, saved->seed, *options.seed));
  const bool other_world = saved->world_size != group.world_size() && !options.same_for_any_world;
  if (group.rank() == 0 && (other_world || saved->batch_size != options.batch_size))
    std::fprintf(
        stderr,
        "muster: note: the checkpoint is of %d ranks with batches of %d, this run has %d with %d; it "
        "continues, but not as the uninterrupted run would\n",
        saved->world_size, saved->batch_size, group.world_size(), options.batch_size);
  out.state = *saved;
  out.state.continue_with(group.world_size(), options.batch_size);
  return out;
}

}  // namespace muster
