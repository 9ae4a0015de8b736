// SPDX-License-Identifier: Apache-2.0
// RotatingFile: a log file that is renamed to <path>.1, <path>.2, ... when it has grown, as logrotate does
// it.
//  - Files change at line ends only (\n, or the \r of a progress bar), so a line is never in two of them; a
//  file is larger than its limit by one line at most, and only if that line came in pieces. A line of more
//  than kLongestLine is cut.
//  - <path> always exists: the fresh file takes its name in one rename(2), which `tail -F` follows.
//  - What cannot be written (a full disk) is dropped and counted. As soon as there is room again a line in
//  the file says how many bytes are missing there, and writing goes on at the beginning of a line.
// Blocks like write(2). Owned by the log writer's process, per stream. Source: logrotate(8), inotify(7).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "launcher/job/rotation.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class RotatingFile {
 public:
  static constexpr std::uint64_t kLongestLine = 4 * 1024 * 1024;

  /// `file`: `path`, open for appending. `link`: a symbolic link to it whose neighbours <link>.1 ... are made
  /// likewise; empty: none. `turning` is called before and after the names change.
  RotatingFile(UniqueFd file, std::string path, std::string link, Rotation rules,
               std::function<void()> turning = {});

  void write(std::string_view bytes);

  /// Goes on where a writer that was killed has stopped, in a file that finish_rotation() has seen. A line in
  /// it says how many bytes may be `missing`, if any.
  void go_on(std::uint64_t missing);

  /// errno of what keeps output from being written now; 0: nothing.
  [[nodiscard]] int error() const { return error_; }
  /// errno of what keeps the file from being renamed; 0: nothing.
  [[nodiscard]] int rotation_error() const { return rotation_error_; }
  /// Bytes that were dropped so far.
  [[nodiscard]] std::uint64_t missing() const { return missing_; }

 private:
  [[nodiscard]] bool at_line_start(std::string_view next) const;
  [[nodiscard]] std::size_t cut_for(std::string_view bytes) const;
  void put(std::string_view bytes);
  void drop(std::string_view bytes);
  [[nodiscard]] std::string_view resume(std::string_view bytes);
  bool rotate();
  void link_to(int number) const;

  UniqueFd file_;
  std::string path_;
  std::string link_;
  Rotation rules_;
  std::function<void()> turning_;
  std::uint64_t size_ = 0;  // of the file, as far as it is known here
  std::uint64_t limit_;     // at which it is rotated; grows while that fails
  char last_ = '\n';        // the last byte that was written, or dropped
  int held_ = 0;            // how many of <path>.1 ... exist
  int error_ = 0;
  int rotation_error_ = 0;
  bool torn_ = false;            // the file ends within a line of which the rest was dropped
  std::uint64_t missing_ = 0;    // in total
  std::uint64_t announced_ = 0;  // how many of them are noted in the file
};

/// Puts the names of a log's files in order after whoever renamed them was killed. True: they are as after
/// the rotation, as far as anybody can tell; false: as before it, and none is lost either way.
bool finish_rotation(const std::string& path, int keep);

}  // namespace muster::launcher
