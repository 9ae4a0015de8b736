// SPDX-License-Identifier: Apache-2.0
// LogRouter: where the standard streams of one attempt's workers go.
//  - stdout: inherited, so it passes through untouched; a channel where the view shows lines; a file under
//  -r/-t; nowhere if a filter excludes the rank.
//  - stderr: an OutputChannel, passed on byte for byte, or line by line where the view asks for it, while the
//  last bytes are kept; or a file under -r/-t.
//  - under -t the file is followed (inotify, no polling); lines with a text of --duplicate-*-filters then
//  also go to a FilteredLog.
//  - files that are to be rotated are written by the LogWriter's process, from the worker's pipe.
// The Screen decides what is shown. Files are the workers' own descriptors, or the LogWriter's: nothing is
// lost in them if the launcher is killed, and a slow terminal does not slow a teed worker. One loop. Owned by
// the agent, per attempt.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/output/error_watch.h"
#include "launcher/output/filtered_log.h"
#include "launcher/output/followed_file.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/rotated_logs.h"
#include "launcher/output/screen.h"
#include "launcher/output/stderr_file.h"
#include "launcher/text/line_splitter.h"
#include "launcher/text/tail_buffer.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class LogRouter {
 public:
  struct Streams {
    int stdout_fd = -1;  // -1: inherited
    int stderr_fd = -1;
  };

  /// The terminals that workers' streams should resemble where they pass through here; -1: none.
  struct Terminals {
    int out = -1;
    int err = -1;
  };

  /// `writer`: of the files; nullptr: they are not rotated, and the workers write them themselves.
  LogRouter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
            LogDirectory& directory, OutputSink& out, OutputSink& err, Terminals terminals,
            LogWriter* writer);
  ~LogRouter();

  /// The descriptors for a worker about to be started; owned here until started().
  [[nodiscard]] Result<Streams> open(int local_rank);
  /// The worker has its copies: closes ours.
  void started(int local_rank);

  /// The workers are gone: takes up what is still in their channels and files.
  void drain();
  [[nodiscard]] std::vector<std::string> stderr_tail(int local_rank, std::size_t lines);
  /// Takes up what a worker has written so far, and tells the error in it, if any.
  [[nodiscard]] std::optional<Cause> error_so_far(int local_rank);
  void window_changed();
  /// Changes with each piece of output of a worker that was seen here or went to a file. Where the view is
  /// `all`, stdout without a file is not seen.
  [[nodiscard]] std::uint64_t output_so_far(int local_rank) const;
  [[nodiscard]] bool sees_stdout(int local_rank) const;

  /// Whoever reads the launcher's own stream does not take anything now.
  [[nodiscard]] bool clogged(Std stream) const;
  /// Nobody reads the launcher's own stream, so that what this worker writes is not taken either.
  [[nodiscard]] bool held_back(int local_rank, Std stream) const;
  /// The file that a worker's stream goes to; empty: none.
  [[nodiscard]] std::string log_file(int local_rank, Std stream) const;
  /// Whether it goes through the launcher.
  [[nodiscard]] bool channelled(int local_rank, Std stream) const;

 private:
  struct Follower;  // one teed file
  struct Channel;   // one stream that passes through here
  struct Worker;

  [[nodiscard]] Result<void> open_filtered();
  [[nodiscard]] Result<UniqueFd> open_file(int local_rank, Std stream, bool follow);
  [[nodiscard]] Result<void> follow(int local_rank, Std stream, const std::string& path,
                                    std::shared_ptr<const LogStreamState> state);
  [[nodiscard]] Result<void> watch(Follower& follower);
  [[nodiscard]] Result<UniqueFd> open_channel(Channel& channel, int local_rank, Std stream,
                                              Screen::Form form);
  void read_channel(Channel& channel);
  std::size_t read_channel_once(Channel& channel);
  void follow_changes();
  void flush(FilteredLog* filtered);
  void read_follower(Follower& follower, bool to_the_end);
  void moved(Follower& follower);

  boost::asio::io_context& io_;
  const Job& job_;
  LogDirectory& directory_;
  Terminals terminals_;
  int base_rank_;
  Screen screen_;
  boost::asio::posix::stream_descriptor changes_;  // inotify
  std::vector<std::unique_ptr<Follower>> followers_;
  std::unordered_map<int, Follower*> watched_;  // by watch descriptor
  std::optional<RotatedLogs> rotated_;
  std::optional<FilteredLog> filtered_out_, filtered_err_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Instant drained_by_{};
  std::string buffer_;           // shared by all reads
  std::shared_ptr<bool> alive_;  // false once destroyed: handlers that are still queued check it
};

}  // namespace muster::launcher
