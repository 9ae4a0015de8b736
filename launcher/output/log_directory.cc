// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/log_directory.h"

#include <algorithm>
#include <filesystem>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/text/usage_error.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr const char* kMemory = "/dev/shm";
constexpr std::string_view kProgressFile = "progress";

bool is_writable_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
         ::access(path.c_str(), W_OK | X_OK) == 0;
}

/// A run id is a file name here: '/' cannot stay.
std::string as_file_name(std::string_view run_id) {
  std::string out(run_id);
  std::ranges::replace(out, '/', '_');
  return out;
}

/// Where nothing but error files can appear, memory is the place: 256 directories take 1 ms there, and
/// took 1.6 s on a disk that others were writing to.
std::string temporary_parent(const LogSettings& settings, const Environment& environment,
                             bool memory = true) {
  const bool output = !settings.redirects.none() || !settings.tee.none();
  if (memory && !output && is_writable_directory(kMemory)) return kMemory;
  // As Python does: a TMPDIR of the host that a job was sent from may not be here.
  const std::string tmp(lookup(environment, "TMPDIR").value_or(""));
  for (const std::string& path : {tmp, std::string("/tmp"), std::string("/var/tmp")})
    if (!path.empty() && is_writable_directory(path)) return path;
  return tmp.empty() ? "/tmp" : tmp;
}

/// Eight characters more, as torchrun's have.
Result<std::string> make_unique(const std::string& prefix) {
  std::string path = prefix + "r_XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return fail(errno_error("create the log directory " + path, errno));
  return path;
}

}  // namespace

Result<void> LogDirectory::create(const LogSettings& settings, std::string_view run_id,
                                  const Environment& environment) {
  if (settings.directory == "/dev/null") return {};
  std::string base;
  if (settings.directory) {
    base = *settings.directory;
    std::error_code error;
    std::filesystem::create_directories(base, error);
    if (error || !std::filesystem::is_directory(base, error))
      return usage("--log-dir={}: it is not a directory and cannot be created{}{}", base, error ? ": " : "",
                   error ? error.message() : "");
    const auto whole = std::filesystem::absolute(base, error);  // workers may change their directory
    if (!error) base = whole;
  } else {
    const std::string parent = temporary_parent(settings, environment);
    auto made = make_unique(parent + "/muster_");
    if (!made && parent == kMemory)
      made = make_unique(temporary_parent(settings, environment, false) + "/muster_");
    if (!made) {
      Error error = std::move(made).error();
      error.message += "; give --log-dir, or set TMPDIR to a directory with room";
      return fail(std::move(error));
    }
    temporary_base_ = base = *std::move(made);
  }
  MUSTER_TRY(run_, make_unique(fmt::format("{}/{}_", base, as_file_name(run_id))));
  // Where there is no room it is done without.
  if (!base.starts_with(kMemory) && is_writable_directory(kMemory))
    if (auto memory = make_unique(fmt::format("{}/muster_", kMemory))) memory_ = *std::move(memory);
  return {};
}

LogDirectory::~LogDirectory() {
  // Most are empty: remove_all needs eight calls for each of them.
  for (int rank = 0; rank < workers_ && !temporary_base_.empty(); ++rank) ::rmdir(file(rank, {}).c_str());
  std::error_code ignored;
  for (const std::string& directory : {temporary_base_, memory_})
    if (!directory.empty()) std::filesystem::remove_all(directory, ignored);
}

Result<void> LogDirectory::begin_attempt(const Assignment& assignment, const std::string& host, int workers) {
  if (!enabled()) return {};
  const int attempt = assignment.attempt;
  base_rank_ = assignment.base_rank;
  workers_ = workers;
  by_rank_ = fmt::format("{}/generation_{}/{}", run_, assignment.generation, as_file_name(host));
  // The nodes have changed and the number of restarts has not: what was written before stays.
  const int repeats = begun_[attempt]++;
  attempt_ = fmt::format("{}/attempt_{}", run_, attempt);
  if (repeats > 0) attempt_ += fmt::format(".{}", repeats);
  if (::mkdir(attempt_.c_str(), 0777) != 0) return fail(errno_error("create " + attempt_, errno));
  for (int rank = 0; rank < workers; ++rank) {
    const std::string directory = fmt::format("{}/{}", attempt_, rank);
    if (::mkdir(directory.c_str(), 0777) != 0) return fail(errno_error("create " + directory, errno));
  }
  return {};
}

Result<void> LogDirectory::name_by_rank(int local_rank, std::string_view suffix) {
  std::error_code error;
  std::filesystem::create_directories(by_rank_, error);
  if (error) return fail(ErrorCode::kIo, "create {}: {}", by_rank_, error.message());
  const std::string link = fmt::format("{}/{}.{}", by_rank_, base_rank_ + local_rank, suffix);
  const std::string target =
      fmt::format("../../{}/{}/std{}.log", attempt_.substr(run_.size() + 1), local_rank, suffix);
  if (::symlink(target.c_str(), link.c_str()) != 0)
    return fail(errno_error("create the link " + link, errno));
  return {};
}

std::string LogDirectory::file(int local_rank, std::string_view name) const {
  return enabled() ? fmt::format("{}/{}/{}", attempt_, local_rank, name) : std::string();
}

std::string LogDirectory::progress_file(int local_rank) const {
  if (memory_.empty()) return file(local_rank, kProgressFile);
  return fmt::format("{}/{}.{}", memory_, attempt_.substr(run_.size() + 1), local_rank);
}

std::string LogDirectory::attempt_file(std::string_view name) const {
  return enabled() ? fmt::format("{}/{}", attempt_, name) : std::string();
}

}  // namespace muster::launcher
