// SPDX-License-Identifier: Apache-2.0
// LogWriter: a small process between workers' pipes and their log files, where these are rotated
// (--log-max-size); else the files are the workers' own descriptors. It outlives this process: it goes on
// until all its pipes are at their end, so that nothing is lost when the launcher is killed, and it never
// waits for the launcher, which it tells by messages what it did. Where it is killed a thread of the launcher
// takes its place. Owned by main; used by the LogRouter, per attempt. One loop. Costs one fork; a byte costs
// one more copy (README, "Output"). Source: unix(7), SCM_RIGHTS.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/process/helper_process.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// What the writer has told of one stream.
struct LogStreamState {
  std::uint64_t rotations = 0;
  std::uint64_t missing = 0;  // bytes that could not be written
  int error = 0;              // errno, while nothing can be written
  int rotation_error = 0;     // errno, while the file cannot be renamed

  friend bool operator==(const LogStreamState&, const LogStreamState&) = default;
};

class LogWriter {
 public:
  [[nodiscard]] static Result<std::unique_ptr<LogWriter>> start(boost::asio::io_context& io, Rotation rules);
  /// Waits a moment for the writer to end, which it does when nobody holds a pipe to it any more.
  ~LogWriter();

  /// `log`: one line for the user. `rotated`: files may have been renamed. With nullptr: it has ended.
  void begin_attempt(std::function<void(std::string_view)> log, std::function<void()> rotated);

  struct Stream {
    UniqueFd worker;  // the worker's descriptor 1 or 2
    std::shared_ptr<const LogStreamState> state;
  };
  /// `rank`: of the world, for messages. `file`: `path`, open for appending. Where the writer takes no
  /// requests the worker gets the file itself.
  [[nodiscard]] Result<Stream> open(int rank, UniqueFd file, const std::string& path);

  /// `done` is called on the loop when what is in the pipes now is in the files; of a disk that does not
  /// answer, never.
  void flush(std::function<void()> done);

  [[nodiscard]] pid_t pid() const { return process_.pid(); }

 private:
  struct Open;

  LogWriter(boost::asio::io_context& io, Rotation rules, HelperProcess process, UniqueFd channel);
  void receive();
  bool receive_one();
  void request_flush();
  void replace_writer();
  void log_changes(Open& stream);
  void log(std::string_view text);

  Rotation rules_;
  HelperProcess process_;
  std::future<void> thread_ended_;  // valid: a thread has taken its place
  boost::asio::posix::stream_descriptor channel_;
  std::vector<std::unique_ptr<Open>> streams_;  // by number, from first_ on: those of this attempt
  std::uint64_t first_ = 1;
  std::uint64_t flushed_ = 0;                  // the last flush that was answered
  std::deque<std::function<void()>> flushes_;  // those after it
  std::function<void(std::string_view)> log_;
  std::function<void()> rotated_;
  Lifetime lifetime_;
};

/// A log file that is renamed to <path>.1, <path>.2, ... when it has grown, as logrotate does it.
///  - Files change at line ends (\n) only, so a line is never in two of them; a file is larger than its limit
///  by one line at most. A line of more than kLongestLine, all states of a progress bar say, is cut.
///  - <path> always exists: the fresh file takes its name in one rename(2), which `tail -F` follows.
///  - What cannot be written (a full disk) is dropped and counted. As soon as there is room again a line in
///  the file says how many bytes are missing there, and writing goes on at the beginning of a line.
/// Blocks like write(2). Source: logrotate(8).
class RotatingFile {
 public:
  static constexpr std::uint64_t kLongestLine = 4 * 1024 * 1024;

  /// `file`: `path`, open for appending.
  RotatingFile(UniqueFd file, std::string path, Rotation rules);

  void write(std::string_view bytes);

  [[nodiscard]] const LogStreamState& state() const { return state_; }

 private:
  void put(std::string_view bytes);
  void drop(std::string_view bytes);
  [[nodiscard]] std::string_view resume(std::string_view bytes);
  void rotate();

  UniqueFd file_;
  std::string path_;
  Rotation rules_;
  LogStreamState state_;
  std::uint64_t size_ = 0;       // of the file, as far as it is known here
  std::uint64_t limit_;          // at which it is rotated; grows while that fails
  bool line_ended_ = true;       // by the last byte that was written, or dropped
  int held_ = 0;                 // how many of <path>.1 ... exist
  bool torn_ = false;            // the file ends within a line of which the rest was dropped
  std::uint64_t announced_ = 0;  // how many of the missing bytes are noted in the file
};

}  // namespace muster::launcher
