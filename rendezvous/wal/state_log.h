// SPDX-License-Identifier: Apache-2.0
// StateLog: what musterd must not forget, on its way to the disk. The store's core, the jobs and the hosted
// stores record every change here; at the end of the loop's turn all of them are written and synced at once,
// and only then may anything be sent that could tell of them: servers ask dirty() before they send, and go on
// in committed(). One loop, one thread; the sync blocks the loop, which gathers the next turn's requests
// meanwhile. Failure: while the disk is full nothing is acknowledged and nothing is lost; it says so, and
// tries again once in retry_interval, for no kernel tells of room. A failed sync is final: `failed` is
// called, and the owner has to stop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/metrics_text.h"
#include "rendezvous/wal/journal.h"
#include "rendezvous/wal/saved_state.h"

namespace boost::asio {
class io_context;
}

namespace muster::net {

struct StateLogOptions {
  std::string directory;
  /// The log is rewritten when it is so many times as long as it was after the last rewriting,
  double rewrite_factor = 4;
  std::size_t rewrite_min_bytes = std::size_t{4} << 20;  ///< and not before it is so long.
  Millis retry_interval{1000};
  std::function<void(const Error&)> failed;  ///< called once, from the loop
};

struct StateLogStats {
  std::uint64_t num_bytes = 0;    ///< of the log as it is
  std::uint64_t num_records = 0;  ///< since the start
  DurationHistogram syncs;        ///< what each write took until it was on the disk
};

/// Who records in a StateLog.
class StateKeeper {
 public:
  virtual ~StateKeeper() = default;
  /// All that is kept, for a new log. Nothing is uncommitted then.
  virtual void describe(journal::Recorder& to) const = 0;
  /// Nothing can be recorded from now on, see StateLog::stalled().
  virtual void held_up() {}
  /// Everything recorded so far is on the disk: what told of it and was held back goes out.
  virtual void committed() = 0;
  /// All keepers have done that: what was not taken up meanwhile comes next.
  virtual void go_on() {}
};

class StateLog {
 public:
  /// Reads the directory's log.
  [[nodiscard]] static Result<std::shared_ptr<StateLog>> open(boost::asio::io_context& loop,
                                                              const StateLogOptions& options, const Log& log);
  virtual ~StateLog() = default;

  /// What the log held when it was opened, for those who go on with it.
  [[nodiscard]] virtual SavedState& saved() = 0;
  /// Where the changes go.
  [[nodiscard]] virtual journal::Recorder& recorder() = 0;
  virtual void attach(StateKeeper& keeper) = 0;
  virtual void detach(StateKeeper& keeper) = 0;

  /// True while a change is not on the disk. The reference is valid as long as the log.
  [[nodiscard]] virtual const bool& dirty() const = 0;
  /// Writes what is left if it can; nothing is tried again.
  virtual void close() = 0;
  /// Nothing can be written for now, as where the disk is full: take up no more that would be recorded.
  [[nodiscard]] virtual bool stalled() const = 0;
  /// Hosted stores are among what it keeps; where they are not, nothing said of them waits for it.
  [[nodiscard]] virtual bool keeps_hosted() const = 0;
  [[nodiscard]] virtual StateLogStats stats() const { return {}; }

 protected:
  StateLog() = default;
};

}  // namespace muster::net
