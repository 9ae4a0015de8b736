// SPDX-License-Identifier: Apache-2.0
// StderrFile: the file that a worker's stderr goes to under -r and -t, as the launcher reads it: searched for
// an error from its beginning, each time from where the last search ended, and its last lines. Owned by the
// LogRouter; one loop, which a search holds up: 64 MiB cost 0.1 to 0.3 s. Of a file that grew by more than
// that since the last search, the first and the last 32 MiB of it are searched. A file that cannot be read
// has no error in it. Of rotated files those are searched that are still there, up to 64 MiB of them at a
// time and then the last 32 MiB; none is kept open between searches, which would keep its disk space too.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "launcher/job/cause.h"
#include "launcher/output/error_watch.h"
#include "launcher/output/followed_file.h"

namespace muster::launcher {

class StderrFile {
 public:
  static constexpr off_t kSearchBytes = off_t{32} << 20;  // at either end of what is new

  explicit StderrFile(std::string path) : path_(std::move(path)) {}
  /// It is rotated, and read through this.
  void rotates(FollowedFile file) { rotated_.emplace(std::move(file)).rest(); }

  /// The error in what is there so far, if any. `buffer` is for the reads.
  [[nodiscard]] std::optional<Cause> error_so_far(std::string& buffer);
  [[nodiscard]] std::vector<std::string> last_lines(std::size_t count) const;

 private:
  void search(std::string& buffer);
  void search_rotated(std::string& buffer);

  std::string path_;
  std::optional<FollowedFile> rotated_;
  off_t searched_ = 0;
  ErrorWatch errors_;
};

}  // namespace muster::launcher
