// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/wal/state_log.h"

#include <algorithm>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "rendezvous/wal/log_file.h"

namespace muster::net {
namespace {

class LoopStateLog final : public StateLog,
                           public journal::Recorder,
                           public std::enable_shared_from_this<LoopStateLog> {
 public:
  LoopStateLog(boost::asio::io_context& loop, const StateLogOptions& options, const Log& log,
               LogFile::Opened opened, SavedState saved)
      : loop_(loop),
        options_(options),
        log_(log),
        file_(std::move(opened.file)),
        saved_(std::move(saved)),
        timer_(loop),
        rewrite_at_(rewrite_limit()) {}

  SavedState& saved() override { return saved_; }
  journal::Recorder& recorder() override { return *this; }
  void attach(StateKeeper& keeper) override { keepers_.push_back(&keeper); }
  void detach(StateKeeper& keeper) override { std::erase(keepers_, &keeper); }
  const bool& dirty() const override { return dirty_; }
  bool stalled() const override { return stalled_; }
  bool keeps_hosted() const override { return true; }
  StateLogStats stats() const override {
    StateLogStats out = stats_;
    out.num_bytes = file_.size();
    return out;
  }
  void close() override {
    closing_ = true;
    if (dirty_) commit();
    broken_ = true;
    timer_.cancel();
  }

  void set(std::string_view key, std::string_view value) override {
    records_.set(key, value);
    changed();
  }
  void append(std::string_view key, std::string_view bytes) override {
    records_.append(key, bytes);
    changed();
  }
  void erase(std::string_view key) override {
    records_.erase(key);
    changed();
  }
  void push(std::string_view queue, std::string_view element) override {
    records_.push(queue, element);
    changed();
  }
  void pop(std::string_view queue) override {
    records_.pop(queue);
    changed();
  }
  void job(std::string_view name, const JobRecord& record) override {
    records_.job(name, record);
    changed();
  }
  void job_finished(std::string_view name, const membership::NodeId& node) override {
    records_.job_finished(name, node);
    changed();
  }
  void job_progress(std::string_view name, const JobProgress& progress) override {
    records_.job_progress(name, progress);
    changed();
  }
  void job_left(std::string_view name, const membership::NodeId& node) override {
    records_.job_left(name, node);
    changed();
  }
  void job_forgotten(std::string_view name) override {
    records_.job_forgotten(name);
    changed();
  }
  void hosted_began(std::string_view job, std::int64_t generation, std::uint64_t instance) override {
    records_.hosted_began(job, generation, instance);
    changed();
  }
  void hosted_ended(std::uint64_t instance) override {
    records_.hosted_ended(instance);
    changed();
  }
  void hosted_changed(std::uint64_t instance, const StoreChange& change) override {
    records_.hosted_changed(instance, change);
    changed();
  }
  void hosted_done(std::uint64_t instance, const ChannelName& name, const ChannelMark& mark) override {
    records_.hosted_done(instance, name, mark);
    changed();
  }
  void hosted_gone(std::uint64_t instance, const ChannelName& name) override {
    records_.hosted_gone(instance, name);
    changed();
  }

 private:
  void changed() {
    ++stats_.num_records;
    if (dirty_) return;
    dirty_ = true;
    // Behind what the loop has ready now, which thereby shares the sync.
    boost::asio::post(loop_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->commit();
    });
  }

  void commit() {
    if (broken_) return;
    const Instant begin = SteadyClock::now();
    const auto written = file_.append(records_);
    stats_.syncs.add(std::chrono::duration<double>(SteadyClock::now() - begin).count());
    if (!written) {
      if (written.error().code != ErrorCode::kExhausted) return give_up(written.error());
      if (!std::exchange(stalled_, true)) {
        for (StateKeeper* keeper : keepers_) keeper->held_up();
        log_.error(fmt::format(
            "{}; {} bytes of changes wait, and nothing is acknowledged until they are on the disk: "
            "make room",
            written.error().message, records_.size()));
      }
      timer_.expires_after(options_.retry_interval);
      timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
        if (const auto self = weak.lock(); self && !error) self->commit();
      });
      return;
    }
    if (std::exchange(stalled_, false)) log_.info(fmt::format("{}: there is room again", file_.path()));
    records_.clear();
    dirty_ = false;
    // Not while it closes: who knows the whole state may have gone already.
    if (file_.size() >= rewrite_at_ && !closing_ && !rewrite()) return;
    const std::vector keepers = keepers_;
    for (StateKeeper* keeper : keepers) keeper->committed();
    for (StateKeeper* keeper : keepers) keeper->go_on();
  }

  // False: it cannot go on.
  bool rewrite() {
    const std::size_t before = file_.size();
    const auto done = file_.rewrite([this](journal::Recorder& to) {
      // What nobody has taken is kept as well.
      saved_.describe(to);
      for (const StateKeeper* keeper : keepers_) keeper->describe(to);
    });
    if (done) {
      log_.debug(fmt::format("{}: rewritten, {} bytes instead of {}", file_.path(), file_.size(), before));
    } else if (done.error().code == ErrorCode::kExhausted) {
      log_.warning(fmt::format("{}; the log goes on growing from {} bytes", done.error().message, before));
    } else {
      give_up(done.error());
      return false;
    }
    rewrite_at_ = rewrite_limit();
    return true;
  }

  [[nodiscard]] std::size_t rewrite_limit() const {
    return std::max(options_.rewrite_min_bytes,
                    static_cast<std::size_t>(static_cast<double>(file_.size()) * options_.rewrite_factor));
  }

  void give_up(const Error& error) {
    broken_ = true;
    dirty_ = true;  // for good: nothing more is acknowledged
    stalled_ = true;
    if (const auto call = std::exchange(options_.failed, {})) call(error);
  }

  boost::asio::io_context& loop_;
  StateLogOptions options_;
  Log log_;
  LogFile file_;
  SavedState saved_;
  boost::asio::steady_timer timer_;
  std::vector<StateKeeper*> keepers_;
  journal::Encoder records_;
  bool dirty_ = false;
  bool stalled_ = false;
  bool broken_ = false;
  bool closing_ = false;
  StateLogStats stats_;
  std::size_t rewrite_at_;
};

}  // namespace

Result<std::shared_ptr<StateLog>> StateLog::open(boost::asio::io_context& loop,
                                                 const StateLogOptions& options, const Log& log) {
  SavedState saved;
  MUSTER_TRY(LogFile::Opened opened, LogFile::open(options.directory, saved));
  if (!opened.remark.empty()) log.warning(opened.remark);
  log.info(
      fmt::format("state log {}: {} bytes in {} frames; {} keys, {} jobs and {} hosted stores are as before",
                  opened.file.path(), opened.file.size(), opened.num_frames, saved.store.keys().size(),
                  saved.jobs.size(), saved.hosted.size()));
  return std::make_shared<LoopStateLog>(loop, options, log, std::move(opened), std::move(saved));
}

}  // namespace muster::net
