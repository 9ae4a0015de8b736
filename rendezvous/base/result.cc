// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <cstdlib>

#include <muster/check.h>
#include <muster/result.h>

namespace muster {

std::string_view to_string(ErrorCode code) {
  // Indexed by ErrorCode.
  constexpr std::array<std::string_view, static_cast<std::size_t>(ErrorCode::kFailed) + 1> kNames = {
      "InvalidArgument", "NotFound", "Timeout", "PeerGone",  "Protocol",    "Mismatch",
      "Exhausted",       "Io",       "Corrupt", "Cancelled", "Unsupported", "Failed"};
  const auto number = static_cast<std::size_t>(code);  // which may be another program's
  return number < kNames.size() ? kNames[number] : "?";
}

void check_failed(const char* file, int line, const char* expression, std::string_view detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%.*s)\n", file, line, expression,
               static_cast<int>(detail.size()), detail.data());
  std::abort();
}

}  // namespace muster
