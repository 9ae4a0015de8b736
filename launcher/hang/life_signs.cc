// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/life_signs.h"

#include <array>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/output/blocked_write.h"
#include "launcher/progress/collective_word.h"
#include "launcher/progress/progress_word.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

LifeSigns::LifeSigns(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
                     const LogDirectory& directory, const LogRouter& router, const WorkerGroup& group,
                     const Log& log)
    : job_(job), directory_(directory), router_(router), group_(group), log_(log) {
  if (job.hang.heartbeat.empty()) return;
  std::vector<std::string> paths;
  paths.reserve(static_cast<std::size_t>(job.local_world_size));
  for (int rank = 0; rank < job.local_world_size; ++rank)
    paths.push_back(job.hang.heartbeat_file(assignment.base_rank + rank, rank));
  heartbeats_.emplace(io, std::move(paths));
}

void LifeSigns::look(Told seen) {
  open_.push_back(std::move(seen));
  if (open_.size() > 1) return;
  if (!heartbeats_) return look_again();
  heartbeats_->read([this](bool in_time) {
    if (!in_time && heartbeats_known_)
      log_.warning(
          fmt::format("{} and the like: their file system does not answer; nobody is taken for "
                      "hanging until it does",
                      job_.hang.heartbeat));
    heartbeats_known_ = in_time;
    look_again();
  });
}

void LifeSigns::look_again() {
  std::vector<Seen> seen;
  seen.reserve(static_cast<std::size_t>(job_.local_world_size));
  for (int rank = 0; rank < job_.local_world_size; ++rank) seen.push_back(look_at(rank));
  for (const Told& told : std::exchange(open_, {})) told(seen);
}

LifeSigns::Seen LifeSigns::look_at(int local_rank) const {
  Seen out;
  out.source = "none";
  out.sign.running = group_.running(local_rank);
  if (!out.sign.running) return out;
  // O_NONBLOCK: the worker may have made a pipe of it.
  const UniqueFd file(
      ::open(directory_.progress_file(local_rank).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  std::array<char, kProgressBytes> block;
  const ssize_t n = file && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode)
                        ? retry_eintr([&] { return ::pread(file.get(), block.data(), block.size(), 0); })
                        : -1;
  // An empty file: nothing is to be expected, as after a truncation.
  if (n > 0) {
    const ProgressWord word = parse_progress({block.data(), static_cast<std::size_t>(n)});
    out.word = word.text;
    out.sign.tells = !word.is_page || word.moves > 0;
    out.sign.paused = word.paused && word.moves > 0;
    out.sign.under_way = word.under_way;
    out.sign.seen = word.is_page ? word.moves : mark_of(info);
    if (out.sign.tells) out.source = "progress";
    if (out.sign.paused) out.patience = "has asked for patience";
  }
  if (heartbeats_ && !heartbeats_known_) {
    out.sign.paused = true;
    out.patience = "has a heartbeat file whose file system does not answer";
  } else if (heartbeats_) {
    if (const auto mark = heartbeats_->marks()[static_cast<std::size_t>(local_rank)]) {
      if (!out.sign.tells) out.source = "heartbeat";
      out.sign.tells = true;
      out.sign.seen += *mark;
    }
  }
  // Only while others may wait for it is the silence of a program a sign that says nothing of itself.
  const auto collectives = out.sign.tells || out.sign.paused
                               ? std::nullopt
                               : read_collective_life(directory_.progress_file(local_rank));
  if (collectives) {
    out.sign.seen += collectives->moves;
    out.sign.tells = collectives->waits;
    if (collectives->waits) out.source = "collectives";
  }
  const bool told = out.sign.tells && !(collectives && collectives->waits);
  if (!told && job_.hang.watch == HangRules::Watch::kFixed) {
    if (!out.sign.tells)
      out.source = router_.sees_stdout(local_rank) ? "output"
                                                   : "stderr alone: with --view=all stdout goes past muster";
    out.sign.seen += router_.output_so_far(local_rank);
  }
  const bool judged = out.sign.tells || job_.hang.watch == HangRules::Watch::kFixed;
  if (judged && !out.sign.paused && waits_for_reader(local_rank)) {
    out.sign.paused = true;
    out.patience = "waits for whoever reads its output";
  }
  return out;
}

bool LifeSigns::waits_for_reader(int local_rank) const {
  for (const Std stream : {Std::kOut, Std::kErr}) {
    if (!router_.is_blocked(stream)) continue;  // a system call
    // What it writes stays in its pipe, and is no sign.
    if (router_.backpressure(local_rank, stream)) return true;
    const auto write = find_blocked_write(group_.pid(local_rank));
    if (write && write->fd == (stream == Std::kOut ? 1 : 2) && !router_.has_file(local_rank, stream))
      return true;
  }
  return false;
}

}  // namespace muster::launcher
