// SPDX-License-Identifier: Apache-2.0
// FileStore: a Store in one append-only file on a file system that every rank sees, byte-compatible with
// PyTorch's FileStore; HashStore: the same operations between the threads of one process. Both thread-safe.
// Records: u32 key length, key, u32 value length, value; the last record of a key wins; flock around each
// access.
#pragma once

#include <memory>
#include <string>

#include <muster/store.h>

namespace muster {

/// `world_size` > 0: the file is deleted when the last of that many users has gone; else it stays.
[[nodiscard]] Result<std::unique_ptr<Store>> open_file_store(const std::string& path,
                                                             std::int64_t world_size = -1);

[[nodiscard]] std::shared_ptr<Store> make_hash_store();

}  // namespace muster
