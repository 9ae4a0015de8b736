// SPDX-License-Identifier: Apache-2.0
// RotatedLogs: what the log writer does for one attempt, as the launcher sees it: opens its streams, hears
// its bell, says once for each stream what could not be written or renamed, and why, and sees to it that
// there is a writer. One loop. Owned by the LogRouter, per attempt.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <muster/result.h>

#include "launcher/output/log_writer.h"

namespace muster::launcher {

class RotatedLogs {
 public:
  /// `say`: one line for the user. `turned`: files may have been rotated.
  RotatedLogs(boost::asio::io_context& io, LogWriter& writer, std::function<void(std::string_view)> say,
              std::function<void()> turned);
  ~RotatedLogs();

  /// `rank`: of the world, for messages.
  [[nodiscard]] Result<LogWriter::Stream> open(int rank, UniqueFd file, const std::string& path,
                                               const std::string& link);
  /// Until the files hold what the workers have written so far, or `patience` is over.
  void settle(Millis patience);
  /// The workers are gone: the same, and says what is wrong with the files in the end.
  void finish(Millis patience);

 private:
  struct File {
    int rank;
    std::string path;
    std::shared_ptr<const LogStreamState> state;
    bool failing = false;  // and said so
    bool growing = false;  // likewise: it cannot be renamed
    std::uint64_t missing = 0;
  };

  void take_bell();
  void listen();
  void look();
  void replace_writer();
  [[nodiscard]] bool settle_until(Instant deadline);
  void look_at(File& file);

  LogWriter& writer_;
  std::function<void(std::string_view)> say_;
  std::function<void()> turned_;
  boost::asio::posix::stream_descriptor bell_;
  std::vector<File> files_;
  int replacements_ = 0;
  int listens_ = 0;              // how often it has begun to
  bool lost_ = false;            // the writer is gone, there is no other, and that was said
  std::shared_ptr<bool> alive_;  // false once destroyed: handlers that are still queued check it
};

}  // namespace muster::launcher
