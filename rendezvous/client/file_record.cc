// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/client/file_record.h"

#include <cstring>
#include <optional>

#include "rendezvous/base/fail.h"

namespace muster {
namespace {

void encode_part(std::string_view part, std::string& out) {
  const auto length = static_cast<std::uint32_t>(part.size());
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
  out += part;
}

/// The part at the front of `rest`, taken off; nothing when it is not complete.
Result<std::optional<std::string_view>> take_part(std::string_view& rest) {
  std::uint32_t length = 0;
  if (rest.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, rest.data(), sizeof length);
  if (length > kMaxFileRecordPart)
    return fail(ErrorCode::kCorrupt, "a record of {} bytes is longer than any store writes", length);
  if (rest.size() - sizeof length < length) return std::nullopt;
  const std::string_view part = rest.substr(sizeof length, length);
  rest.remove_prefix(sizeof length + length);
  return part;
}

}  // namespace

void encode_file_record(std::string_view key, std::string_view value, std::string& out) {
  encode_part(key, out);
  encode_part(value, out);
}

Result<std::size_t> replay_file_records(std::string_view bytes, FileRecordMap& map) {
  std::size_t done = 0;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    MUSTER_TRY(const auto key, take_part(rest));
    if (!key) break;
    MUSTER_TRY(const auto value, take_part(rest));
    if (!value) break;
    if (key->starts_with('-')) {
      if (const auto found = map.find(key->substr(1)); found != map.end()) map.erase(found);
    } else {
      map.insert_or_assign(std::string(*key), std::string(*value));
    }
    done = bytes.size() - rest.size();
  }
  return done;
}

}  // namespace muster
