// SPDX-License-Identifier: Apache-2.0
// write_file_atomically: a file that is replaced whole or not at all, whatever happens in between (full disk,
// SIGKILL, power loss). The new bytes go to an unnamed file of the same directory where the file system has
// such (so that a killed process leaves nothing behind), else to path.tmp-<pid>; then fsync, rename, fsync of
// the directory. On an error the old file is untouched and no temporary one is left. Blocks on the disk.
// Source: open(2) O_TMPFILE, rename(2).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster {

/// Writes the pieces one after another.
[[nodiscard]] Result<void> write_file_atomically(const std::string& path,
                                                 std::span<const std::string_view> pieces);

/// Makes the names in a directory outlive a power loss.
[[nodiscard]] Result<void> sync_directory(const std::string& directory);

}  // namespace muster
