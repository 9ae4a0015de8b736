// SPDX-License-Identifier: Apache-2.0
// LogRouter: where the standard streams of one attempt's workers go.
//  - stdout: inherited, so it passes through untouched; a file under -r/-t; nowhere if the filter excludes
//  the rank.
//  - stderr: a StderrChannel, passed on byte for byte while the last bytes are kept; or a file under -r/-t.
//  - under -t the file is followed (inotify, no polling) and shown line by line with a prefix; whole lines
//  only.
// Files are the workers' own descriptors: nothing is lost in them if the launcher is killed, and a slow
// terminal does not slow a teed worker. One loop. Owned by the agent, per attempt.
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

#include "launcher/error_watch.h"
#include "launcher/job.h"
#include "launcher/line_splitter.h"
#include "launcher/log_directory.h"
#include "launcher/output_sink.h"
#include "launcher/tail_buffer.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class LogRouter {
 public:
  struct Streams {
    int stdout_fd = -1;  // -1: inherited
    int stderr_fd = -1;
  };

  /// `terminal`: the terminal that workers' stderr should resemble, or -1.
  LogRouter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
            const LogDirectory& directory, OutputSink& out, OutputSink& err, int terminal);
  ~LogRouter();

  /// The descriptors for a worker about to be started; owned here until started().
  [[nodiscard]] Result<Streams> open(int local_rank);
  /// The worker has its copies: closes ours.
  void started(int local_rank);

  /// The workers are gone: takes up what is still in their channels and files.
  void drain();
  [[nodiscard]] std::vector<std::string> stderr_tail(int local_rank, std::size_t lines) const;
  /// Takes up what a worker has written so far, and tells the error in it, if any.
  [[nodiscard]] std::optional<Cause> error_so_far(int local_rank);
  void window_changed();

 private:
  struct Follower;  // one teed file
  struct Worker;

  [[nodiscard]] bool shown(int local_rank) const;
  [[nodiscard]] Result<UniqueFd> open_file(int local_rank, Std stream, bool follow, int& watch);
  [[nodiscard]] std::string prefix(int local_rank) const;
  void read_channel(Worker& worker);
  std::size_t read_channel_once(Worker& worker);
  void follow_changes();
  void read_follower(Follower& follower, bool to_the_end);

  boost::asio::io_context& io_;
  const Job& job_;
  const Assignment& assignment_;
  const LogDirectory& directory_;
  OutputSink& out_;
  OutputSink& err_;
  int terminal_;
  boost::asio::posix::stream_descriptor changes_;                 // inotify
  std::unordered_map<int, std::unique_ptr<Follower>> followers_;  // by watch descriptor
  std::vector<std::unique_ptr<Worker>> workers_;
  std::string buffer_;           // shared by all reads
  std::shared_ptr<bool> alive_;  // false once destroyed: handlers that are still queued check it
};

}  // namespace muster::launcher
