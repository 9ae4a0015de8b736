// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a FileStore's file, which several processes write: replayed at once and as it grows they
// give the same map; what is in the map survives being written anew.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rendezvous/client/file_record.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  FileRecordMap whole;
  const auto done = replay_file_records(bytes, whole);
  if (done) check(*done <= bytes.size());

  // A reader that comes back whenever the file has grown.
  FileRecordMap grown;
  std::size_t at = 0;
  bool damaged = false;
  for (std::size_t end = 0; !damaged && end <= bytes.size();) {
    const auto more = replay_file_records(bytes.substr(at, end - at), grown);
    damaged = !more;
    if (more) at += *more;
    if (end == bytes.size()) break;
    end = std::min(bytes.size(), end + 1 + data[0]);
  }
  check(damaged == !done);
  if (damaged) return 0;
  check(at == *done && grown == whole);

  std::string written;
  for (const auto& [key, value] : whole) encode_file_record(key, value, written);
  FileRecordMap again;
  const auto read = replay_file_records(written, again);
  check(read && *read == written.size() && again == whole);
  return 0;
}
