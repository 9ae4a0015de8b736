// SPDX-License-Identifier: Apache-2.0
// LogRouter: where the standard streams of one attempt's workers go.
//  - stdout: inherited, so it passes through untouched; a channel where the view shows lines; a file under
//  -r/-t; nowhere if a filter excludes the rank.
//  - stderr: an OutputChannel, passed on byte for byte, or line by line where the view asks for it, while the
//  last bytes are kept; or a file under -r/-t.
//  - under -t the file is followed (inotify, no polling); lines with a text of --duplicate-*-filters then
//  also go to a FilteredLog.
//  - files that are to be rotated are written by the LogWriter's process, from the worker's pipe.
// The OutputFormatter decides what is shown. Files are the workers' own descriptors, or the LogWriter's:
// nothing is lost in them if the launcher is killed, and a slow terminal does not slow a teed worker. One
// loop. Owned by the agent, per attempt.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/output/error_watch.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/output_formatter.h"
#include "launcher/output/tail_reader.h"
#include "launcher/process/worker_group.h"
#include "launcher/text/line_splitter.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// The way of one worker's stderr, and with some views stdout, through the launcher. A pipe; where the
/// launcher's own stream is a terminal, a pseudo-terminal of the same size without output processing, so that
/// programs that ask isatty() still show colours, progress bars and each line at once. Source: pty(7),
/// termios(3).
struct OutputChannel {
  UniqueFd reader;  // non-blocking
  UniqueFd writer;  // the worker's descriptor 1 or 2
};

/// `terminal`: the terminal to imitate, or -1 for a pipe. kExhausted names the limit.
[[nodiscard]] Result<OutputChannel> open_output_channel(int terminal);

/// After SIGWINCH: gives the pseudo-terminal behind `reader` the size of `terminal`.
void copy_window_size(int terminal, int reader);

/// The file of --duplicate-stdout-filters or --duplicate-stderr-filters. Of the lines that -t shows, those
/// that contain one of the texts go there too, with their prefix. A write that fails ends the duplication and
/// is logged once: the worker's own file has every line. Source:
/// torch/distributed/elastic/multiprocessing/tail_log.py.
class FilteredLog {
 public:
  /// Creates the file, empty. `texts` outlives this object.
  [[nodiscard]] static Result<FilteredLog> create(std::string path, const std::vector<std::string>& texts);

  /// `line` without its end; `prefix` is called where the line is taken.
  void offer(std::string_view line, const std::function<std::string()>& prefix);
  /// Writes what was taken since the last time. Fails once at most.
  [[nodiscard]] Result<void> flush();

 private:
  FilteredLog(std::string path, UniqueFd file, const std::vector<std::string>& texts)
      : path_(std::move(path)), file_(std::move(file)), texts_(&texts) {}

  std::string path_;
  UniqueFd file_;
  const std::vector<std::string>* texts_;
  std::string taken_;
  bool broken_ = false;
};

class LogRouter {
 public:
  /// `writer`: of the files; nullptr: they are not rotated, and the workers write them themselves.
  LogRouter(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
            LogDirectory& directory, OutputSink& out, OutputSink& err, LogWriter* writer);
  ~LogRouter();

  /// The descriptors for a worker about to be started; owned here until started().
  [[nodiscard]] Result<WorkerStreams> open(int local_rank);
  /// The worker has its copies: closes ours.
  void started(int local_rank);
  /// open() and started(), with the other files of a worker.
  [[nodiscard]] WorkerFiles worker_files();

  /// The workers are gone: reads what is still in their channels and files. `done` is called when all is
  /// shown, or its time is over.
  void drain(std::function<void()> done);
  struct StderrFinding {
    std::optional<Cause> error;
    std::vector<std::string> last_lines;
    std::optional<Cause> no_room = {};  // where there is no error: the disk was full, which may be why
  };
  /// Each finds the error in what a worker has written until now, and its last `lines`. What comes through
  /// here is read at once; a file is read when the search is called, which another thread has to do: it can
  /// take long, and waits for the log writer.
  using StderrSearch = std::function<StderrFinding()>;
  [[nodiscard]] std::vector<StderrSearch> stderr_searches(const std::vector<int>& local_ranks,
                                                          std::size_t lines);
  void window_changed();
  /// Changes with each piece of output of a worker that was seen here or went to a file. Where the view is
  /// `all`, stdout without a file is not seen.
  [[nodiscard]] std::uint64_t output_so_far(int local_rank) const;
  [[nodiscard]] bool sees_stdout(int local_rank) const;

  /// The launcher's own stream takes nothing now: its reader is slow or stopped.
  [[nodiscard]] bool is_blocked(Std stream) const;
  /// What this worker writes stays in its pipe, because the launcher's own stream is blocked.
  [[nodiscard]] bool backpressure(int local_rank, Std stream) const;
  /// A worker's stream goes to a file of its own.
  [[nodiscard]] bool has_file(int local_rank, Std stream) const;

 private:
  struct Follower;  // one teed file
  struct Channel;   // one stream that passes through here
  struct Worker;

  [[nodiscard]] Result<void> open_filtered();
  [[nodiscard]] Result<UniqueFd> open_file(int local_rank, Std stream, bool follow);
  [[nodiscard]] Result<void> follow(int local_rank, Std stream, const std::string& path);
  [[nodiscard]] Result<void> watch(Follower& follower);
  [[nodiscard]] Result<UniqueFd> open_channel(Channel& channel, int local_rank, Std stream,
                                              OutputFormatter::Form form);
  void read_channel(Channel& channel);
  std::size_t read_channel_once(Channel& channel);
  void follow_changes();
  void feed(Follower& follower, std::string_view bytes);
  [[nodiscard]] StderrFinding search_channel(Channel& channel, std::size_t lines);
  void read_follower(Follower& follower);
  void drain_followers();
  void await_followers();
  void end_follower(Follower& follower);
  void end_drain();
  void moved(Follower& follower);
  [[nodiscard]] int older_files() const;

  boost::asio::io_context& io_;
  const Job& job_;
  LogDirectory& directory_;
  /// Which the workers' streams should resemble where they pass through here; -1: none.
  struct {
    int out, err;
  } terminals_;
  int base_rank_;
  OutputFormatter formatter_;
  boost::asio::posix::stream_descriptor changes_;  // inotify
  std::vector<std::unique_ptr<Follower>> followers_;
  std::unordered_map<int, Follower*> watched_;  // by watch descriptor
  LogWriter* writer_;
  std::optional<FilteredLog> filtered_out_, filtered_err_;
  std::vector<std::unique_ptr<Worker>> workers_;
  LoopTimer drain_timer_;
  bool draining_ = false;          // the followers read on to the end of their files
  std::function<void()> drained_;  // while drain() goes on
  std::string buffer_;             // shared by all reads
  Lifetime lifetime_;
};

}  // namespace muster::launcher
