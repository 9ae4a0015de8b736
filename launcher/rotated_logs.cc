// SPDX-License-Identifier: Apache-2.0
#include "launcher/rotated_logs.h"

#include <fcntl.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {

RotatedLogs::RotatedLogs(boost::asio::io_context& io, LogWriter& writer,
                         std::function<void(std::string_view)> say, std::function<void()> turned)
    : writer_(writer),
      say_(std::move(say)),
      turned_(std::move(turned)),
      bell_(io),
      alive_(std::make_shared<bool>(true)) {
  // The bell is the writer's for longer than this lives.
  if (const int bell = ::fcntl(writer.bell(), F_DUPFD_CLOEXEC, 3); bell >= 0) bell_.assign(bell);
  listen();
}

RotatedLogs::~RotatedLogs() {
  *alive_ = false;
}

Result<LogWriter::Stream> RotatedLogs::open(int rank, UniqueFd file, const std::string& path,
                                            const std::string& link) {
  MUSTER_TRY(LogWriter::Stream stream, writer_.open(std::move(file), path, link));
  files_.push_back({rank, path, stream.state});
  return stream;
}

void RotatedLogs::listen() {
  if (!bell_.is_open()) return;
  bell_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                   [this, alive = alive_](boost::system::error_code error) {
                     if (error || !*alive) return;
                     look();
                     if (!lost_) listen();
                   });
}

void RotatedLogs::look() {
  if (!writer_.clear_bell() && !std::exchange(lost_, true))
    say_(
        fmt::format("the log writer (pid {}) is gone: what the workers write to their log files is lost, "
                    "and they fail when they write. Was it killed?",
                    writer_.pid()));
  for (File& file : files_) look_at(file);
  turned_();
}

void RotatedLogs::look_at(File& file) {
  if (const int error = file.state->error.load(); error != 0 && !std::exchange(file.failing, true))
    say_(
        fmt::format("rank {}: write {}: {}; the worker goes on, and what it writes is lost until there is "
                    "room again",
                    file.rank, file.path, errno_text(error)));
  else if (error == 0 && std::exchange(file.failing, false)) {
    const std::uint64_t missing = file.state->missing.load();
    say_(fmt::format("rank {}: {} is written again; {} bytes are missing in it", file.rank, file.path,
                     missing - std::exchange(file.missing, missing)));
  }
  if (const int error = file.state->rotation_error.load(); error == 0)
    file.growing = false;
  else if (!std::exchange(file.growing, true))
    say_(fmt::format("rank {}: rotate {}: {}; it grows beyond --log-max-size", file.rank, file.path,
                     errno_text(error)));
}

void RotatedLogs::settle(Millis patience) {
  (void)writer_.settle(SteadyClock::now() + patience);
  look();  // the bell has been heard meanwhile
}

void RotatedLogs::finish(Millis patience) {
  if (!writer_.settle(SteadyClock::now() + patience) && writer_.clear_bell())
    say_(
        fmt::format("the log files are not complete yet: the disk takes longer than {} s. Process {} goes "
                    "on writing them",
                    patience.count() / 1000, writer_.pid()));
  look();
  for (File& file : files_)
    if (file.failing)
      say_(fmt::format("rank {}: {} bytes are missing at the end of {}", file.rank,
                       file.state->missing.load() - file.missing, file.path));
}

}  // namespace muster::launcher
