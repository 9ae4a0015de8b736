// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang_monitor.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/hang_report.h"
#include "launcher/odd_one_out.h"
#include "launcher/process_state.h"
#include "launcher/progress_word.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMostThreads = 64;  // of a worker; a process of PyTorch has hundreds on a large node
constexpr std::string_view kHangFile = "hang.json";
constexpr std::size_t kMostHangs = 16;  // kept of an attempt

std::string how_it_ended(const ProcessEnd& end) {
  return end.signal == 0 ? fmt::format("exited with code {}", end.code)
                         : fmt::format("was killed by {}", signal_name(end.signal));
}

/// Changes whenever the file does; nothing: there is none.
std::optional<std::uint64_t> mark_of(const struct stat& info) {
  const auto nanoseconds = static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000 +
                           static_cast<std::uint64_t>(info.st_mtim.tv_nsec);
  return nanoseconds * 31 + static_cast<std::uint64_t>(info.st_size) +
         static_cast<std::uint64_t>(info.st_ino);
}

std::string follows(OnHang action) {
  switch (action) {
    case OnHang::kRestart:
      return "the workers are stopped and start again (--on-hang=restart)";
    case OnHang::kStop:
      return "the job is stopped (--on-hang=stop)";
    case OnHang::kReport:
      break;
  }
  return "nothing is done about it (--on-hang=report)";
}

}  // namespace

HangMonitor::HangMonitor(boost::asio::io_context& io, const Surroundings& around, Act act)
    : around_(around),
      act_(std::move(act)),
      io_(io),
      timer_(io),
      ended_(static_cast<std::size_t>(around.job.local_world_size)),
      alive_(std::make_shared<bool>(true)) {}

HangMonitor::~HangMonitor() {
  *alive_ = false;
}

void HangMonitor::begin() {
  watch_.emplace(around_.job.hang, static_cast<std::size_t>(around_.job.local_world_size),
                 SteadyClock::now());
  arm();
}

void HangMonitor::worker_ended(int local_rank, const ProcessEnd& end) {
  ended_[static_cast<std::size_t>(local_rank)] = how_it_ended(end);
}

void HangMonitor::stop() {
  watch_.reset();
  timer_.cancel();
  collector_.reset();
}

void HangMonitor::arm() {
  if (!watch_ || !watch_->next_look()) return;
  timer_.expires_at(*watch_->next_look());
  timer_.async_wait([this, alive = alive_](boost::system::error_code error) {
    if (!error && *alive && watch_) look();
  });
}

HangMonitor::Seen HangMonitor::look_at(int local_rank) const {
  Seen out;
  out.source = "none";
  out.sign.running = around_.group.running(local_rank);
  if (!out.sign.running) return out;
  // O_NONBLOCK: the worker may have made a pipe of it.
  const UniqueFd file(
      ::open(around_.directory.progress_file(local_rank).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
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
    out.sign.seen = word.is_page ? word.moves : *mark_of(info);
    if (out.sign.tells) out.source = "progress";
  }
  if (!around_.job.hang.heartbeat.empty()) {
    const std::string path =
        around_.job.hang.heartbeat_file(around_.assignment.base_rank + local_rank, local_rank);
    if (::stat(path.c_str(), &info) == 0) {
      if (!out.sign.tells) out.source = "heartbeat";
      out.sign.tells = true;
      out.sign.seen += *mark_of(info);
    }
  }
  if (!out.sign.tells && around_.job.hang.watch == HangRules::Watch::kFixed) {
    out.source = around_.router.sees_stdout(local_rank)
                     ? "output"
                     : "stderr alone: with --view=all stdout goes past muster";
    out.sign.seen = around_.router.output_so_far(local_rank);
  }
  return out;
}

void HangMonitor::look() {
  const Instant now = SteadyClock::now();
  std::vector<Seen> seen;
  std::vector<LifeSign> signs;
  for (int rank = 0; rank < around_.job.local_world_size; ++rank) {
    seen.push_back(look_at(rank));
    signs.push_back(seen.back().sign);
  }
  const HangWatch::Seen verdict = watch_->look(signs, now);
  if (!verdict.hang.empty()) report_hang(verdict.hang, verdict.silence, std::move(seen), now);
  if (!verdict.moved.empty()) moved(verdict.moved);
  // Tools stop what they look at: nobody is to be found silent for that.
  if (!collector_) arm();
}

void HangMonitor::report_hang(const std::vector<int>& hang, Millis silence, std::vector<Seen> seen,
                              Instant now) {
  // The first one stays, it may be the cause of the others.
  if (hangs_.size() >= kMostHangs) hangs_.erase(hangs_.begin() + 1);
  hang_began_ = now - silence;
  HangReport& report = hangs_.emplace_back();
  report.host = around_.job.host;
  report.wall_time_s = std::time(nullptr);
  report.silence = silence;
  report.limit = watch_->limit(hang.front()).value_or(silence);
  for (int local_rank = 0; local_rank < around_.job.local_world_size; ++local_rank) {
    Seen& of_rank = seen[static_cast<std::size_t>(local_rank)];
    RankEvidence& rank = report.ranks.emplace_back();
    rank.local_rank = local_rank;
    rank.rank = around_.assignment.base_rank + local_rank;
    rank.pid = around_.group.pid(local_rank);
    rank.ended = ended_[static_cast<std::size_t>(local_rank)];
    rank.silent = std::find(hang.begin(), hang.end(), local_rank) != hang.end();
    rank.silence = watch_->silence(local_rank, now);
    rank.word = std::move(of_rank.word);
    rank.source = std::move(of_rank.source);
    if (!of_rank.sign.running) continue;
    // Before any tool: those stop what they look at.
    rank.threads = read_threads(rank.pid, kMostThreads);
    rank.python = runs_python(rank.pid);
  }
  collector_ = std::make_unique<StackCollector>(io_, around_.spawner, around_.environment);
  collector_->collect(report.ranks, [this] { told(); });
}

/// The stacks are there.
void HangMonitor::told() {
  HangReport& report = hangs_.back();
  report.odd = odd_one_out(report.ranks);
  std::string text = hang_text(report, follows(around_.job.hang.action));
  if (around_.directory.enabled() && around_.directory.temporary_base().empty())
    text += fmt::format("  all stacks and states are in {}\n", around_.directory.attempt_file(kHangFile));
  around_.err.write(text);
  collector_.reset();
  const int named = culprit(report).local_rank;
  std::string line = hang_line(report, culprit(report));
  if (around_.told) around_.told(named, line);
  look();
  // The tools took their time: who was silent may have moved or ended since.
  if (around_.job.hang.action != OnHang::kReport && watch_->hanging()) act_(named, std::move(line));
  keep();
}

void HangMonitor::moved(const std::vector<int>& ranks) {
  if (hangs_.empty()) return;
  const auto after = std::chrono::duration_cast<Millis>(SteadyClock::now() - hang_began_);
  hangs_.back().over_after = after;
  around_.log.warning(fmt::format("the hang is over after {}: local_rank {} moves again",
                                  duration_text(after), fmt::join(ranks, ",")));
  keep();
}

void HangMonitor::keep() const {
  if (!around_.directory.enabled() || !around_.directory.temporary_base().empty()) return;
  const std::string path = around_.directory.attempt_file(kHangFile);
  const std::string draft = path + ".part";
  const UniqueFd file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file || !write_all(file.get(), hangs_to_json(hangs_)) || ::rename(draft.c_str(), path.c_str()) != 0)
    around_.log.warning(fmt::format("could not write {}: {}", path, errno_text(errno)));
}

}  // namespace muster::launcher
