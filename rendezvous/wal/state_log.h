// SPDX-License-Identifier: Apache-2.0
// StateLog: what a coordinator must not forget, on its way to where it is kept. Servers record every change
// here. At the end of the loop's turn all of them are written at once, beside the loop; until that is done
// dirty() holds back whatever could tell of them, and stalled() keeps the servers from taking up more. Then
// on_committed() releases the output and on_resume() the input. One loop, one thread. Failure: while there is
// no room nothing is acknowledged and nothing is lost; problem() says so, and it is tried again once a
// second, for no kernel tells of room. A failed sync is final: `failed` is called, and the owner has to stop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/base/log.h"
#include "rendezvous/base/metrics_text.h"
#include "rendezvous/wal/journal.h"

namespace muster::net {

struct StateLogOptions {
  std::string directory;
  /// The log is rewritten when it is twice as long as it was after the last time, and not before it is so
  /// long.
  std::size_t rewrite_min_bytes = std::size_t{4} << 20;
  std::function<void(const Error&)> failed;  ///< called once, from the loop
};

struct StateLogStats {
  std::uint64_t num_bytes = 0;    ///< of the log as it is
  std::uint64_t num_records = 0;  ///< since the start
  DurationSum syncs;              ///< what each write took until it was on the disk
};

/// Who records in a StateLog.
class StateKeeper {
 public:
  virtual ~StateKeeper() = default;
  /// All that is kept, for a new log. Called while stalled, perhaps by another thread: nothing of it may
  /// change until on_resume().
  virtual void describe(const journal::LogSink& to) const = 0;
  /// Nothing may be recorded from now on.
  virtual void on_stall() {}
  /// Everything recorded so far is kept: what was held back because of it goes out.
  virtual void on_committed() = 0;
  /// What was not taken up meanwhile comes next.
  virtual void on_resume() {}
};

class StateLog : public std::enable_shared_from_this<StateLog> {
 public:
  /// A log in a directory: reads it first.
  [[nodiscard]] static Result<std::shared_ptr<StateLog>> open(boost::asio::io_context& loop,
                                                              const StateLogOptions& options, const Log& log);
  virtual ~StateLog() = default;

  /// What was kept when it was opened, for those who go on with it: they take it before the loop runs, and
  /// what nobody took is not in a rewritten log.
  [[nodiscard]] RecoveredState& recovered() { return recovered_; }
  void record(const journal::LogRecord& record);
  /// record(), for as long as this lives.
  [[nodiscard]] journal::LogSink sink() {
    return [this](const journal::LogRecord& each) { record(each); };
  }
  void attach(StateKeeper& keeper) { keepers_.push_back(&keeper); }
  /// Waits for a snapshot that is being written.
  virtual void detach(StateKeeper& keeper) { std::erase(keepers_, &keeper); }

  /// True while a change is not kept.
  [[nodiscard]] bool dirty() const { return dirty_; }
  /// It is being written: take up nothing that might be recorded.
  [[nodiscard]] bool stalled() const { return stalled_; }
  /// Why it cannot be written for now, for people; empty: it can.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// Writes what is left if it can, and releases what waited for that. False: it is lost, which is logged.
  /// Nothing is acknowledged any more.
  virtual bool close() {
    closed_ = true;
    return true;
  }
  /// Hosted stores are among what it keeps; where they are not, nothing said of them waits for it.
  [[nodiscard]] virtual bool keeps_hosted() const = 0;
  [[nodiscard]] virtual StateLogStats stats() const { return {}; }

 protected:
  StateLog(boost::asio::io_context& loop, RecoveredState recovered)
      : loop_(loop), recovered_(std::move(recovered)) {}

  /// Takes a record for the next write(). False: it can wait for the next one that cannot.
  virtual bool add(const journal::LogRecord& record) = 0;
  /// Writes what was added; on_written() is called from the loop when that is kept.
  virtual void write() = 0;
  /// What is to be done between writes, while stalled; finish() follows. False: nothing.
  virtual bool tidy() { return false; }
  void on_written();
  /// Everything recorded is kept: what waited for that goes out.
  void release();
  void finish();
  /// Writes though nothing was recorded.
  void write_soon();

  boost::asio::io_context& loop_;
  RecoveredState recovered_;
  std::vector<StateKeeper*> keepers_;
  std::uint64_t num_records_ = 0;
  std::string problem_;
  bool frozen_ = false;  // the keepers' state is being read by another thread
  bool closed_ = false;

 private:
  void begin();
  void stall();

  bool dirty_ = false;
  bool changed_ = false;  // since the write under way began
  bool stalled_ = false;
};

}  // namespace muster::net
