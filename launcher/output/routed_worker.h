// SPDX-License-Identifier: Apache-2.0
// LogRouter's parts: a worker's streams, the channel that one is read from, the file that one is followed in.
// Values of the LogRouter's, for its own two files: log_router.cc moves the bytes, log_account.cc tells of
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/log_router.h"

namespace muster::launcher {

/// One read; also what is searched of a channel when it is asked for an error.
inline constexpr std::size_t kReadBytes = 64 * 1024;

struct LogRouter::Follower {
  Follower(int rank, Std which, FollowedFile followed)
      : local_rank(rank), stream(which), file(std::move(followed)) {}

  int local_rank;
  Std stream;
  FollowedFile file;
  LineSplitter splitter;
  int watch = -1;
  FilteredLog* filtered = nullptr;
  bool waiting = false;  // for the screen to clear
};

struct LogRouter::Channel {
  explicit Channel(boost::asio::io_context& io) : reader(io) {}

  boost::asio::posix::stream_descriptor reader;
  bool open = false;
  std::uint64_t bytes = 0;  // read so far
  int local_rank = 0;
  Std stream = Std::kErr;
  Screen::Form form = Screen::Form::kBytes;
  LineSplitter splitter;  // with kLines
  TailBuffer tail;        // of stderr
  ErrorWatch errors;      // likewise
};

struct LogRouter::Worker {
  explicit Worker(boost::asio::io_context& io) : out(io), err(io) {}

  UniqueFd child_stdout, child_stderr;  // until started()
  Channel out, err;
  std::string stdout_path, stderr_path;                        // of files
  std::vector<std::shared_ptr<const LogStreamState>> rotated;  // of those that are rotated
  std::optional<StderrFile> stderr_file;                       // when it goes to one
};

}  // namespace muster::launcher
