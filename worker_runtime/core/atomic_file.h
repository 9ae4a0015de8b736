// SPDX-License-Identifier: Apache-2.0
// Files that outlive a power loss, and write_file_atomically: one that is replaced whole or not at all,
// whatever happens in between (full disk, SIGKILL, power loss). The new bytes go to path.tmp-<pid>; then
// fsync, rename, fsync of the directory. On an error the old file is untouched and no temporary one is left;
// a kill may leave that. All block on the disk. Source: rename(2), fsync(2).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster {

struct FileSum {
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const FileSum&, const FileSum&) = default;
};

/// Writes the pieces one after another to a new file and waits until they are on the disk. Its name is only
/// there for good once sync_directory() was called.
[[nodiscard]] Result<FileSum> write_new_file(const std::string& path,
                                             std::span<const std::string_view> pieces);

[[nodiscard]] Result<void> sync_directory(const std::string& directory);

[[nodiscard]] Result<void> write_file_atomically(const std::string& path,
                                                 std::span<const std::string_view> pieces);
[[nodiscard]] inline Result<void> write_file_atomically(const std::string& path, std::string_view text) {
  return write_file_atomically(path, {&text, 1});
}

}  // namespace muster
