// SPDX-License-Identifier: Apache-2.0
// Records of a FileStore's file: u32 key length, key, u32 value length, value, host byte order. Pure: bytes
// <-> map. Keys of users start with '/'; a record "-" + key with an empty value deletes; other keys are the
// store's own
// ("cleanup/"). Used by file_store.cc. Source: torch/csrc/distributed/c10d/FileStore.cpp (format).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster {

using FileRecordMap = std::map<std::string, std::string, std::less<>>;

/// A longer key or value is not written, and read as damage.
inline constexpr std::size_t kMaxFileRecordPart = std::size_t{1} << 30;

/// Appends one record to `out`.
void encode_file_record(std::string_view key, std::string_view value, std::string& out);

/// Replays whole records in order. Returns how many bytes they were: less than bytes.size() when the last one
/// is not complete. kCorrupt: a length above the cap.
[[nodiscard]] Result<std::size_t> replay_file_records(std::string_view bytes, FileRecordMap& map);

}  // namespace muster
