// SPDX-License-Identifier: Apache-2.0
// What a LogRouter tells of its workers' output: errors in it, its end, how much there was, whether it moves.
#include <chrono>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/output/log_router.h"
#include "launcher/output/routed_worker.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kSettlePatience{1};  // for the log writer, where an error is looked for

}  // namespace

std::optional<Cause> LogRouter::error_so_far(int local_rank) {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return std::nullopt;
  if (worker->stderr_file) {
    if (rotated_) rotated_->settle(kSettlePatience);
    return worker->stderr_file->error_so_far(buffer_);
  }
  // No more than the channel holds: what comes later was not there when it was asked for.
  for (std::size_t bytes = 0, n = 1; n > 0 && bytes < kReadBytes && worker->err.open; bytes += n)
    n = read_channel_once(worker->err);
  ErrorWatch watch = worker->err.errors;  // a copy: the last line may go on
  watch.finish();
  return watch.found();
}

std::vector<std::string> LogRouter::stderr_tail(int local_rank, std::size_t lines) {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return {};
  if (!worker->stderr_file) return worker->err.tail.last_lines(lines);
  if (rotated_) rotated_->settle(kSettlePatience);
  return worker->stderr_file->last_lines(lines);
}

bool LogRouter::clogged(Std stream) const {
  pollfd room{stream == Std::kOut ? STDOUT_FILENO : STDERR_FILENO, POLLOUT, 0};
  return ::poll(&room, 1, 0) == 0;
}

bool LogRouter::held_back(int local_rank, Std stream) const {
  return channelled(local_rank, stream) && screen_.shown(local_rank) && screen_.congested(stream);
}

std::string LogRouter::log_file(int local_rank, Std stream) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return {};
  return stream == Std::kOut ? worker->stdout_path : worker->stderr_path;
}

bool LogRouter::channelled(int local_rank, Std stream) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  return worker && (stream == Std::kOut ? worker->out : worker->err).open;
}

std::uint64_t LogRouter::output_so_far(int local_rank) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (!worker) return 0;
  std::uint64_t out = worker->out.bytes + worker->err.bytes;
  // Of a disk that is full the files say nothing: the worker writes on.
  for (const auto& state : worker->rotated) out += state->taken.load();
  if (!worker->rotated.empty()) return out;
  for (const char* name : {"stdout.log", "stderr.log"}) {
    struct stat info {};
    if (directory_.enabled() && ::stat(directory_.file(local_rank, name).c_str(), &info) == 0)
      out += static_cast<std::uint64_t>(info.st_size);
  }
  return out;
}

bool LogRouter::sees_stdout(int local_rank) const {
  const auto& worker = workers_[static_cast<std::size_t>(local_rank)];
  const Std files = job_.logs.redirects.of(local_rank) | job_.logs.tee.of(local_rank);
  return worker &&
         (worker->out.open || worker->out.bytes > 0 || (directory_.enabled() && has(files, Std::kOut)));
}

}  // namespace muster::launcher
