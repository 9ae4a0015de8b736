// SPDX-License-Identifier: Apache-2.0
// LogFile: the state log on disk: one directory, owned by one process at a time, with the files "lock"
// (flock'ed, its text the owner's pid), "state.log" (see journal.h) and, while it is rewritten,
// "state.log.new". Owned by a net::StateLog
// (or a test), one thread at a time; every call blocks for the disk. Failure:
// text with path, cause and what to try. A file that could not be synced is not written again: the kernel
// forgets which pages failed (fsync(2), NOTES).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"
#include "rendezvous/wal/journal.h"

namespace muster {

class LogFile {
 public:
  struct Opened;
  /// Makes the directory and the log where there are none, else gives `to` what the log holds, cuts a torn
  /// tail and syncs the rest: a former process may have written it without living to sync it. kExhausted:
  /// another process owns the directory. kCorrupt: the log is damaged; nothing is changed.
  [[nodiscard]] static Result<Opened> open(const std::string& directory, const journal::LogSink& to);

  /// Writes the encoder's records as one frame and returns when they are on the disk. kExhausted: there is no
  /// room; the file is as before and this may be tried again. Any other failure is final.
  [[nodiscard]] Result<void> append(journal::Encoder& records);

  /// Puts a file that holds exactly what `describe` gives in the place of the log, at once. On failure the
  /// log is as before.
  using Describe = std::function<void(const journal::LogSink&)>;
  [[nodiscard]] Result<void> rewrite(const Describe& describe);

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  LogFile() = default;
  Result<void> write(int fd, std::string_view bytes, std::size_t offset) const;
  [[nodiscard]] Error error(std::string_view call, int error_number) const;

  std::string directory_;
  std::string path_;
  UniqueFd lock_;
  UniqueFd directory_fd_;
  UniqueFd fd_;
  std::size_t size_ = 0;  // of what is synced
  std::uint64_t salt_ = 0;
};

struct LogFile::Opened {
  LogFile file;
  std::size_t num_frames = 0;  ///< replayed
  std::string notice;          ///< not empty: what was cut, for the log
};

}  // namespace muster
