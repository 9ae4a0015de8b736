// SPDX-License-Identifier: Apache-2.0
// FollowedFile: reads a log file while it is written, from one file to the next where it is rotated. The
// names move while it reads, so it counts files: the log writer's shared state tells how many there have
// been. What was rotated away before it was read is skipped and counted. Does not block beyond the disk.
// Owned by the LogRouter, per teed stream; one loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>

#include <muster/result.h>

#include "launcher/output/log_writer.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// The last bytes of a log file, taken up in its predecessor <path>.1 where it has less.
[[nodiscard]] std::string end_of_log(const std::string& path, std::size_t max_bytes);

class FollowedFile {
 public:
  /// `state`: of the writer that rotates it; nullptr: nobody does.
  [[nodiscard]] static Result<FollowedFile> open(std::string path,
                                                 std::shared_ptr<const LogStreamState> state, int keep);

  /// Bytes read; 0: all that there is now.
  [[nodiscard]] std::size_t read(char* into, std::size_t size);
  /// Lets go of the file until the next read(), which goes on where the last one ended: a file that is
  /// rotated away meanwhile takes no disk space any more.
  void rest();
  /// True once after each time that it went on to another file, which is to be watched now.
  [[nodiscard]] bool take_moved() { return std::exchange(moved_, false); }
  /// How many files were gone before they were read, since it was last asked.
  [[nodiscard]] std::uint64_t take_skipped() { return std::exchange(skipped_, 0); }
  /// Bytes to the present end.
  [[nodiscard]] std::uint64_t left() const;
  [[nodiscard]] int fd() const { return file_.get(); }

 private:
  FollowedFile(std::string path, std::shared_ptr<const LogStreamState> state, int keep)
      : path_(std::move(path)), state_(std::move(state)), keep_(static_cast<std::uint64_t>(keep)) {}

  [[nodiscard]] bool go_on(std::uint64_t turn);
  [[nodiscard]] bool wake();
  [[nodiscard]] std::string name(std::uint64_t back) const;

  std::string path_;
  std::shared_ptr<const LogStreamState> state_;
  std::uint64_t keep_;
  UniqueFd file_;
  off_t at_ = 0;              // while it rests: how far the file was read
  std::uint64_t number_ = 0;  // of the file that is read, the first being 0
  std::uint64_t skipped_ = 0;
  bool moved_ = false;
};

}  // namespace muster::launcher
