// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/checkpoint/step_directory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <regex>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "worker_runtime/core/crc32c.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr const char* kManifestFile = "state.json";
constexpr const char* kTemporary = ".tmp-";
constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 20;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 40;  // a larger file is no model's

std::vector<std::int64_t> steps_in(const std::string& root) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error))
    if (const auto step = step_of(at->path().filename().string())) steps.push_back(*step);
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

Result<void> remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return fail(errno_error("remove " + path.string(), error.value()));
  return {};
}

/// The new directory takes the name, also where another of the same step has it.
Result<void> publish(const std::string& made, const std::string& name) {
  if (::rename(made.c_str(), name.c_str()) == 0) return {};
  if (errno != EEXIST && errno != ENOTEMPTY)
    return fail(errno_error("rename " + made + " to " + name, errno));
  if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, name.c_str(), RENAME_EXCHANGE) == 0)
    return (void)remove_tree(made), Result<void>();
  // A file system that cannot exchange two names: between the next two calls the step is not there.
  MUSTER_OK(remove_tree(name));
  if (::rename(made.c_str(), name.c_str()) != 0)
    return fail(errno_error("rename " + made + " to " + name, errno));
  return {};
}

Result<void> write_made(const std::string& made, Manifest& manifest, const StepFiles& files) {
  MUSTER_OK(remove_tree(made));  // of a process of the same number
  if (::mkdir(made.c_str(), 0777) != 0) return fail(errno_error("make " + made, errno));
  manifest.files.clear();
  for (const auto& [name, pieces] : files) {
    MUSTER_TRY(manifest.files[name], write_new_file(fmt::format("{}/{}", made, name), pieces));
  }
  const std::string text = to_text(manifest);
  const std::string_view bytes = text;
  MUSTER_OK(write_new_file(fmt::format("{}/{}", made, kManifestFile), {&bytes, 1}));
  return sync_directory(made);
}

/// What cannot be removed stays, and costs no training.
void prune(const std::string& root, std::int64_t step, int keep) {
  const auto best = named_step(root, "BEST");
  for (const std::int64_t old : steps_in(root)) {
    if (old > step || keep-- > 0 || old == best) continue;
    if (const auto gone = remove_tree(fmt::format("{}/{}", root, step_name(old))); !gone)
      std::fprintf(stderr, "muster: note: an old checkpoint stays: %s\n", gone.error().message.c_str());
  }
}

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
      return fail(ErrorCode::kCorrupt, "it is of version {}, this program reads {}", version, kVersion);
    auto manifest = parsed.get<Manifest>();
    // Byte for byte what this program writes, the CRC-32C included.
    if (to_text(manifest) != text) return fail(ErrorCode::kCorrupt, "it is damaged");
    const TrainingState& training = manifest.training;
    if (training.step < 0 || training.epoch < 0 || training.epoch_samples < 0 || training.world_size < 1 ||
        training.batch_size < 1 || manifest.growth_tracker < 0 || !(manifest.loss_scale >= 0))
      return fail(ErrorCode::kCorrupt, "a number is out of range");
    return manifest;
  } catch (const json::exception& error) {
    return fail(ErrorCode::kCorrupt, "it is damaged: {}", one_line(error.what()));
  }
}

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::optional<std::int64_t> step_of(std::string_view name) {
  std::int64_t step = -1;
  if (name.starts_with(kPrefix))
    (void)std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  if (step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

Result<UniqueFd> prepare_checkpoints(const std::string& root) {
  if (::mkdir(root.c_str(), 0777) == 0)
    MUSTER_OK(sync_directory(fs::absolute(root).parent_path()));
  else if (errno != EEXIST)
    return fail(errno_error("make the directory " + root, errno));
  UniqueFd lock(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock && errno == ENOTDIR)
    return invalid("{} is not a directory; checkpoints are written into a directory", root);
  if (!lock || ::access(root.c_str(), W_OK | X_OK) != 0)
    return fail(errno_error("the directory " + root + " cannot be written", errno));
  // Some file systems have no locks: there nobody is refused.
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return invalid("another program writes its checkpoints to {}; give another directory", root);
  const std::regex left_over("(LATEST|BEST)?\\.tmp-[0-9]+");
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error))
    if (std::regex_match(at->path().filename().string(), left_over)) MUSTER_OK(remove_tree(at->path()));
  return lock;
}

Result<void> write_step(const std::string& root, Manifest manifest, const StepFiles& files, bool is_best,
                        int keep) {
  const std::int64_t step = manifest.training.step;
  const std::string made = fmt::format("{}/{}{}", root, kTemporary, ::getpid());
  auto written = write_made(made, manifest, files);
  if (written) written = publish(made, fmt::format("{}/{}", root, step_name(step)));
  if (!written) {
    (void)remove_tree(made);
    return written;
  }
  MUSTER_OK(sync_directory(root));
  const std::string line = step_name(step) + "\n";
  // In this order: a run that continues from LATEST, whose state knows of the best, finds that one.
  if (is_best) MUSTER_OK(write_file_atomically(root + "/BEST", line));
  MUSTER_OK(write_file_atomically(root + "/LATEST", line));
  prune(root, step, keep);
  return {};
}

std::optional<std::int64_t> named_step(const std::string& root, const std::string& file) {
  const auto text = read_file(fmt::format("{}/{}", root, file), 64);
  if (!text || !text->ends_with('\n')) return std::nullopt;
  return step_of(std::string_view(*text).substr(0, text->size() - 1));
}

std::vector<std::int64_t> restorable_steps(const std::string& root) {
  std::vector<std::int64_t> steps = steps_in(root);
  if (const auto latest = named_step(root, "LATEST")) {
    std::erase(steps, *latest);
    std::stable_partition(steps.begin(), steps.end(), [&](std::int64_t step) { return step < *latest; });
    steps.insert(steps.begin(), *latest);
  }
  return steps;
}

Result<StepContents> read_step(const std::string& root, std::int64_t step,
                               const std::vector<std::string>& names) {
  const std::string directory = fmt::format("{}/{}", root, step_name(step));
  MUSTER_TRY(const std::string text,
             read_file(fmt::format("{}/{}", directory, kManifestFile), kMaxManifestBytes));
  auto manifest = parse_manifest(text);
  if (!manifest) return fail(fmt::format("{}/{}", directory, kManifestFile), std::move(manifest).error());
  StepContents contents{*std::move(manifest), {}};
  if (contents.manifest.training.step != step || contents.manifest.files.size() != names.size())
    return fail(ErrorCode::kCorrupt, "{}: its state.json is of another step or of other files", directory);
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", directory, name);
    const auto sum = contents.manifest.files.find(name);
    std::error_code error;
    const std::uintmax_t size = fs::file_size(path, error);
    if (error) return fail(errno_error(path, error.value()));
    if (sum == contents.manifest.files.end() || sum->second.size_bytes != size || size > kMaxFileBytes)
      return fail(ErrorCode::kCorrupt, "{} has {} bytes, not those of state.json", path, size);
    MUSTER_TRY(std::string bytes, read_file(path, size));
    if (crc32c(bytes) != sum->second.crc32c || bytes.size() != size)
      return fail(ErrorCode::kCorrupt, "{} is damaged: its CRC-32C is not the one of state.json", path);
    contents.files.emplace(name, std::move(bytes));
  }
  return contents;
}

}  // namespace muster
