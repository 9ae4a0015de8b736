// SPDX-License-Identifier: Apache-2.0
// LogWriter: a small process between workers' pipes and their log files, where these are rotated
// (--log-max-size); else the files are the workers' own descriptors. It outlives this process: it goes on
// until all its pipes are at their end, so that nothing is lost when the launcher is killed. It sleeps in
// epoll_wait(2), in a session of its own, with all signals blocked, and never waits for the launcher. Where
// it is killed another one goes on with the pipes, which this process keeps open too: what is lost is what
// the dead one held, 256 KiB of one stream at the most. Owned by main; the LogRouter opens streams. One
// thread. What it has to say is in shared memory, with a ring of
// the bell. Costs one fork; a byte costs one more copy (README, "Output"). Source: unix(7), SCM_RIGHTS.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "launcher/job/rotation.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// What the writer says of one stream. In shared memory, written by the writer alone.
struct LogStreamState {
  std::atomic<std::uint64_t> turn{0};     // odd: the names of its files are changing; twice the rotations
  std::atomic<std::uint64_t> taken{0};    // bytes of the worker's
  std::atomic<std::uint64_t> done{0};     // of them, those that are not in the writer's hands any more
  std::atomic<bool> in_hand{false};       // some are, or may be
  std::atomic<bool> opened{false};        // the writer has the pipe
  std::atomic<bool> ended{false};         // nobody writes to it any more
  std::atomic<std::uint64_t> missing{0};  // of them, those that could not be written
  std::atomic<int> error{0};              // errno, while nothing can be written
  std::atomic<int> rotation_error{0};     // errno, while the file cannot be renamed
};

/// And of itself.
struct LogWriterState {
  std::atomic<std::uint64_t> settled{0};       // the last request that was fulfilled
  std::atomic<std::int64_t> writing_since{0};  // steady clock, nanoseconds; 0: in no write(2)
  std::atomic<std::uint64_t> refused{0};       // streams that it could not open
};

class LogWriter {
 public:
  /// To be called before other descriptors are opened.
  [[nodiscard]] static Result<LogWriter> start(Rotation rules);
  LogWriter(LogWriter&& other) noexcept;
  LogWriter& operator=(LogWriter&&) = delete;
  /// Waits a moment for the writer to end, which it does when nobody holds a pipe to it any more.
  ~LogWriter();

  struct Stream {
    UniqueFd worker;  // the worker's descriptor 1 or 2
    std::shared_ptr<const LogStreamState> state;
  };
  /// `file`: `path`, open for appending; `link`: a symbolic link to it, whose neighbours are made too.
  [[nodiscard]] Result<Stream> open(UniqueFd file, const std::string& path, const std::string& link);

  /// The writer is gone: another process goes on with the streams that have not ended.
  struct Replaced {
    std::uint64_t lost = 0;  // bytes that may have been in the hands of the former one, at the most
    std::string path;        // of the file in which they are missing
  };
  [[nodiscard]] Result<Replaced> replace();
  /// Hears of the new process.
  void on_replaced(std::function<void(pid_t)> call) { on_replaced_ = std::move(call); }
  /// Lets go of the pipes that the writer does not have any more: who writes to one is told.
  void let_go();
  /// Of all of them: there is no writer any more.
  void give_up() { kept_.clear(); }

  /// Until all that was in the pipes is in the files. False: not by `deadline`, or the writer is gone.
  [[nodiscard]] bool settle(Instant deadline);

  /// Readable when a state has changed; at its end when the writer is gone. clear_bell() empties it.
  [[nodiscard]] int bell() const { return control_.get(); }
  /// False: the writer is gone.
  bool clear_bell();

  /// Since when it is within one write(2), because of a slow disk.
  [[nodiscard]] std::optional<Instant> writing_since() const;
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const Rotation& rules() const { return rules_; }

 private:
  /// What another writer needs in order to go on.
  struct Kept {
    UniqueFd reader;
    UniqueFd memory;
    std::string path;
    std::string link;
    std::shared_ptr<const LogStreamState> state;
  };

  explicit LogWriter(Rotation rules) : rules_(rules) {}
  Result<void> fork_writer(bool first);
  void await_end() const;

  Rotation rules_;
  pid_t pid_ = -1;
  UniqueFd process_;
  UniqueFd control_;
  std::shared_ptr<LogWriterState> state_;
  std::vector<Kept> kept_;
  std::function<void(pid_t)> on_replaced_;
  std::uint64_t requests_ = 0;
  std::uint64_t refused_ = 0;  // as it was last looked at
  bool late_ = false;          // it did not settle in time: not waited for again until it has
};

}  // namespace muster::launcher
