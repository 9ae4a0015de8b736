// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wal/state_log.h"

#include <algorithm>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include <muster/check.h>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/net/helper_thread.h"
#include "rendezvous/wal/log_file.h"

namespace muster::net {

void StateLog::record(const journal::LogRecord& record) {
  MUSTER_CHECK(!frozen_, "a change was recorded while a snapshot is written");
  if (!add(record)) return;
  ++num_records_;
  write_soon();
}

void StateLog::write_soon() {
  changed_ = true;
  if (std::exchange(dirty_, true)) return;
  // Behind what the loop has ready now, which thereby shares the write.
  boost::asio::post(loop_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->begin();
  });
}

void StateLog::stall() {
  if (std::exchange(stalled_, true)) return;
  for (StateKeeper* keeper : std::vector(keepers_)) keeper->on_stall();
}

void StateLog::begin() {
  if (closed_) return;
  stall();
  changed_ = false;
  write();
}

void StateLog::on_written() {
  if (closed_) return;
  if (changed_) return begin();
  release();
  // What was released may have led to a change: a connection that broke.
  if (closed_ || (!dirty_ && tidy())) return;
  finish();
}

void StateLog::release() {
  dirty_ = false;
  for (StateKeeper* keeper : std::vector(keepers_)) keeper->on_committed();
}

void StateLog::finish() {
  stalled_ = false;
  for (StateKeeper* keeper : std::vector(keepers_)) keeper->on_resume();
}

namespace {

constexpr Millis kRetryInterval{1000};

// The file belongs to the helper thread while that has a job, else to the loop. A write that fails for want
// of room is tried again; what is recorded meanwhile goes into the next frame.
class FileStateLog final : public StateLog {
 public:
  FileStateLog(boost::asio::io_context& loop, const StateLogOptions& options, const Log& log,
               LogFile::Opened opened, RecoveredState recovered)
      : StateLog(loop, std::move(recovered)),
        options_(options),
        log_(log),
        disk_(std::make_shared<Disk>(std::move(opened.file))),
        timer_(loop),
        helper_(loop),
        size_(disk_->file.size()),
        // What was read may be mostly of the past.
        rewrite_at_(std::max(options_.rewrite_min_bytes, 2 * recovered_.store.num_bytes())) {}

  bool keeps_hosted() const override { return true; }
  StateLogStats stats() const override {
    StateLogStats out = stats_;
    out.num_bytes = size_;
    out.num_records = num_records_;
    return out;
  }
  void detach(StateKeeper& keeper) override {
    if (std::exchange(frozen_, false)) helper_.wait();
    StateLog::detach(keeper);
  }
  bool close() override {
    if (std::exchange(closed_, true) || broken_) return !broken_;
    timer_.cancel();
    helper_.wait();
    // A frame that is not written has to be before the next one.
    Result<void> written = disk_->write();
    if (written) {
      std::swap(disk_->frame, records_);
      written = disk_->write();
    }
    if (written)
      release();
    else
      log_.error(fmt::format("{}; {} bytes of changes are lost", written.error().message,
                             disk_->frame.size() + records_.size()));
    return written.has_value();
  }

 private:
  struct Disk {
    explicit Disk(LogFile of) : file(std::move(of)) {}
    Result<void> write() {
      if (frame.empty()) return {};
      auto written = file.append(frame);
      if (written) frame.clear();
      return written;
    }
    LogFile file;
    journal::Encoder frame;  // what is being written
  };

  bool add(const journal::LogRecord& record) override {
    records_.add(record);
    return true;
  }

  void write() override {
    std::swap(disk_->frame, records_);
    try_write();
  }

  void try_write() {
    const Instant begin = SteadyClock::now();
    helper_.run([disk = disk_] { return disk->write(); },
                lifetime_.guard([this, begin](const Result<void>& written) {
                  if (closed_) return;
                  stats_.syncs.add(seconds_between(begin, SteadyClock::now()));
                  written ? on_disk() : on_failure(written.error());
                }));
  }

  void on_disk() {
    if (!std::exchange(problem_, {}).empty())
      log_.info(fmt::format("{}: there is room again", disk_->file.path()));
    size_ = disk_->file.size();
    on_written();
  }

  void on_failure(const Error& error) {
    if (error.code != ErrorCode::kExhausted) return stop(error);
    if (problem_.empty())
      log_.error(fmt::format(
          "{}; {} bytes of changes wait, and nothing is acknowledged until they are on the disk: make room",
          error.message, disk_->frame.size()));
    problem_ = "its state log cannot be written: " + error.message;
    lifetime_.call_at(timer_, SteadyClock::now() + kRetryInterval, [this] {
      if (!closed_) try_write();
    });
  }

  // The keepers stand still meanwhile, so their state is read where it is: a copy of several GiB would take
  // as long as writing them does.
  bool tidy() override {
    if (size_ < rewrite_at_) return false;
    frozen_ = true;
    const auto describe = [keepers = keepers_](const journal::LogSink& to) {
      for (const StateKeeper* keeper : keepers) keeper->describe(to);
    };
    helper_.run([disk = disk_, describe] { return disk->file.rewrite(describe); },
                lifetime_.guard([this, before = size_](const Result<void>& done) {
                  frozen_ = false;
                  if (closed_) return;
                  on_rewritten(done, before);
                }));
    return true;
  }

  void on_rewritten(const Result<void>& done, std::size_t before) {
    size_ = disk_->file.size();
    if (done)
      log_.debug(fmt::format("{}: rewritten, {} bytes instead of {}", disk_->file.path(), size_, before));
    else if (done.error().code == ErrorCode::kExhausted)
      log_.warning(fmt::format("{}; the log goes on growing from {} bytes", done.error().message, before));
    else
      return stop(done.error());
    rewrite_at_ = rewrite_limit();
    finish();
  }

  [[nodiscard]] std::size_t rewrite_limit() const { return std::max(options_.rewrite_min_bytes, 2 * size_); }

  // For good: it stays stalled, and nothing more is acknowledged.
  void stop(const Error& error) {
    broken_ = true;
    problem_ = "its state log failed: " + error.message;
    if (const auto call = std::exchange(options_.failed, {})) call(error);
  }

  StateLogOptions options_;
  Log log_;
  std::shared_ptr<Disk> disk_;
  LoopTimer timer_;
  HelperThread helper_;
  journal::Encoder records_;  // for the next frame
  bool broken_ = false;
  StateLogStats stats_;
  std::size_t size_;
  std::size_t rewrite_at_;
  Lifetime lifetime_;
};

}  // namespace

Result<std::shared_ptr<StateLog>> StateLog::open(boost::asio::io_context& loop,
                                                 const StateLogOptions& options, const Log& log) {
  RecoveredState recovered;
  MUSTER_TRY(LogFile::Opened opened, LogFile::open(options.directory, recovered.sink()));
  if (!opened.notice.empty()) log.warning(opened.notice);
  log.info(
      fmt::format("state log {}: {} bytes in {} frames; {} keys, {} jobs and {} hosted stores are as before",
                  opened.file.path(), opened.file.size(), opened.num_frames, recovered.store.keys().size(),
                  recovered.jobs.size(), recovered.hosted.size()));
  return std::make_shared<FileStateLog>(loop, options, log, std::move(opened), std::move(recovered));
}

}  // namespace muster::net
