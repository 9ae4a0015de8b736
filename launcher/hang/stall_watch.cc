// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/stall_watch.h"

#include <ctime>
#include <fcntl.h>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kInterval{1};

/// `path`: of the log file that the stream goes to. `channelled`: it goes through the launcher.
std::string cause_of(const BlockedWrite& write, const std::string& path, bool channelled) {
  const char* name = write.fd == 1 ? "stdout" : "stderr";
  if (!path.empty()) return "the disk with " + path;
  const std::string ours = descriptor_target("self", write.fd);
  // A program may have put something else there.
  if (!channelled && write.target != ours)
    return fmt::format("whoever reads its {} ({})", name, write.target);
  return fmt::format("whoever reads {} ({})", name, ours);
}

}  // namespace

StallWatch::StallWatch(boost::asio::io_context& io, const WorkerGroup& group, const LogRouter& router,
                       int workers, int base_rank, std::string file, const Log& log)
    : group_(group),
      router_(router),
      base_rank_(base_rank),
      file_(std::move(file)),
      log_(log),
      timer_(io),
      sightings_(static_cast<std::size_t>(workers)),
      alive_(std::make_shared<bool>(true)) {
  wait();
}

StallWatch::~StallWatch() {
  *alive_ = false;
}

void StallWatch::wait() {
  timer_.expires_after(kInterval);
  timer_.async_wait([this, alive = alive_](boost::system::error_code error) {
    if (error || !*alive) return;
    look();
    wait();
  });
}

void StallWatch::look() {
  const Instant now = SteadyClock::now();
  const bool clogged = router_.clogged(Std::kOut) || router_.clogged(Std::kErr);
  std::vector<StallLedger::Wait> waits;
  for (std::size_t i = 0; i < sightings_.size(); ++i) {
    const int local_rank = static_cast<int>(i);
    auto& sighting = sightings_[i];
    auto write = group_.running(local_rank) ? find_blocked_write(group_.pid(local_rank), clogged)
                                            : std::optional<BlockedWrite>();
    if (!write) {
      sighting.reset();
      continue;
    }
    if (!sighting || sighting->write != *write) {
      sighting = Sighting{*std::move(write), now};
      continue;
    }
    const Std stream = sighting->write.fd == 1 ? Std::kOut : Std::kErr;
    const std::string path = router_.log_file(local_rank, stream);
    waits.push_back({base_rank_ + local_rank,
                     cause_of(sighting->write, path, router_.channelled(local_rank, stream)), !path.empty(),
                     sighting->since});
  }
  say(ledger_.look(waits, now));
}

void StallWatch::finish() {
  timer_.cancel();
  say(ledger_.look({}, SteadyClock::now()));
}

void StallWatch::say(const std::vector<StallLedger::Line>& lines) const {
  for (const auto& [line, disk] : lines) {
    log_.warning(line);
    if (disk || file_.empty()) continue;
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    ::localtime_r(&now, &local);
    char time[32];
    (void)std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%S%z", &local);
    const UniqueFd file(::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (file) (void)write_all(file.get(), fmt::format("{} {}\n", time, line));
  }
}

}  // namespace muster::launcher
