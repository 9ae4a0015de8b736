// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/rotated_logs.h"

#include <fcntl.h>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr int kMostReplacements = 100;  // of one attempt's: who ends so many ends the next one too
constexpr int kTries = 3;               // it may be killed while it is told of its streams

}  // namespace

RotatedLogs::RotatedLogs(boost::asio::io_context& io, LogWriter& writer,
                         std::function<void(std::string_view)> say, std::function<void()> turned)
    : writer_(writer),
      say_(std::move(say)),
      turned_(std::move(turned)),
      bell_(io),
      alive_(std::make_shared<bool>(true)) {
  take_bell();
}

/// The bell is the writer's for longer than this lives.
void RotatedLogs::take_bell() {
  boost::system::error_code ignored;
  bell_.close(ignored);
  if (const int bell = ::fcntl(writer_.bell(), F_DUPFD_CLOEXEC, 3); bell >= 0) bell_.assign(bell);
  listen();
}

RotatedLogs::~RotatedLogs() {
  *alive_ = false;
}

Result<LogWriter::Stream> RotatedLogs::open(int rank, UniqueFd file, const std::string& path,
                                            const std::string& link) {
  while (true) {
    auto stream = writer_.open(UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 3)), path, link);
    if (stream) {
      files_.push_back({rank, path, stream->state});
      return stream;
    }
    if (lost_ || writer_.clear_bell()) return stream;
    replace_writer();
  }
}

void RotatedLogs::listen() {
  if (!bell_.is_open()) return;
  bell_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                   [this, alive = alive_, turn = ++listens_](boost::system::error_code error) {
                     if (error || !*alive || turn != listens_) return;
                     look();
                     if (!lost_ && turn == listens_) listen();
                   });
}

void RotatedLogs::look() {
  if (!lost_ && !writer_.clear_bell()) replace_writer();
  writer_.let_go();
  for (File& file : files_) look_at(file);
  turned_();
}

void RotatedLogs::replace_writer() {
  const pid_t former = writer_.pid();
  Result<LogWriter::Replaced> made = fail(ErrorCode::kExhausted, "one after the other is killed");
  for (int i = 0; i < kTries && !made && replacements_ < kMostReplacements; ++i, ++replacements_)
    made = writer_.replace();
  if (!made) {
    lost_ = true;
    boost::system::error_code ignored;
    bell_.close(ignored);
    writer_.give_up();
    return say_(fmt::format(
        "the log writer (pid {}) was killed, and there is no other: {}. What the workers write to "
        "their log files is lost, and they fail when they write",
        former, made.error().message));
  }
  take_bell();
  say_(fmt::format(
      "the log writer (pid {}) was killed; pid {} goes on with the workers' pipes, {}", former, writer_.pid(),
      made->lost == 0 ? std::string("and nothing is missing")
                      : fmt::format("up to {} bytes are missing in {}", made->lost, made->path)));
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

bool RotatedLogs::settle_until(Instant deadline) {
  while (!writer_.settle(deadline)) {
    if (lost_ || writer_.clear_bell()) return false;
    replace_writer();
  }
  return true;
}

void RotatedLogs::settle(Millis patience) {
  (void)settle_until(SteadyClock::now() + patience);
  look();  // the bell has been heard meanwhile
}

void RotatedLogs::finish(Millis patience) {
  if (!settle_until(SteadyClock::now() + patience) && !lost_)
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
