// SPDX-License-Identifier: Apache-2.0
// TailReader: reads a log file while it is written, as `tail -F` does: where the file was renamed it goes on
// with the next one, which it finds by the files' numbers (inodes). Files that were removed before they were
// read are skipped. And what else is read of a log with its older files: errors in it, and its end. Does not
// block beyond the disk. A TailReader is owned by the LogRouter, per teed stream; the functions are stateless
// and may run on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "launcher/job/cause.h"
#include "launcher/text/line_splitter.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class TailReader {
 public:
  /// `keep`: how many older files stay beside it; 0: it is not rotated.
  [[nodiscard]] static Result<TailReader> open(std::string path, int keep);

  /// Bytes read; 0: all that there is now.
  [[nodiscard]] std::size_t read(char* into, std::size_t size);
  /// True once after each time that it went on to another file, which is to be watched now.
  [[nodiscard]] bool take_moved() { return std::exchange(moved_, false); }
  /// Whether files were removed before they were read, since it was last asked.
  [[nodiscard]] bool take_skipped() { return std::exchange(skipped_, false); }
  /// Bytes to the present end.
  [[nodiscard]] std::uint64_t left() const;
  [[nodiscard]] int fd() const { return file_.get(); }

 private:
  TailReader(std::string path, int keep) : path_(std::move(path)), keep_(keep) {}

  [[nodiscard]] bool is_named(int number) const;
  [[nodiscard]] std::optional<int> number() const;
  [[nodiscard]] bool next_file();

  std::string path_;
  int keep_;
  UniqueFd file_;
  bool skipped_ = false;
  bool moved_ = false;
};

/// The error in a worker's log, if any. Of a log of more than 64 MiB its first and its last 32 MiB are
/// searched, which costs 0.1 to 0.3 s. A file that cannot be read has no error in it. `newest_bytes`: of the
/// newest file, what comes behind is not searched.
[[nodiscard]] std::optional<Cause> find_error_in_log(const std::string& path, int keep,
                                                     off_t newest_bytes = std::numeric_limits<off_t>::max());

/// The last lines of a log, from the file before it too.
[[nodiscard]] std::vector<std::string> last_lines_of_log(const std::string& path, std::size_t count,
                                                         std::size_t max_bytes = TailBuffer::kDefaultCap);

}  // namespace muster::launcher
