// SPDX-License-Identifier: Apache-2.0
// FileWatch: sleeps until a file may have changed, or a deadline. Told by inotify where the file system
// reports every change to it (local ones); elsewhere (NFS, FUSE, no inotify instance left) it returns after
// 10 to 100 ms and the caller looks for itself. Not thread-safe. Cannot fail: the worst case is the slow
// form.
#pragma once

#include <string>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {

class FileWatch {
 public:
  /// Watches from here on: look at the file once more before the first wait().
  explicit FileWatch(const std::string& path);

  /// True if the kernel reports changes.
  [[nodiscard]] bool told() const { return static_cast<bool>(inotify_); }

  /// Returns after a change, or at the deadline, or when it is time to look.
  void wait(Instant deadline);

 private:
  UniqueFd inotify_;
  Backoff backoff_;
};

}  // namespace muster
