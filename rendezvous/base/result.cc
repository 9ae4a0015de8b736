// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include <muster/check.h>
#include <muster/result.h>

namespace muster {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kNotFound:
      return "NotFound";
    case ErrorCode::kTimeout:
      return "Timeout";
    case ErrorCode::kPeerGone:
      return "PeerGone";
    case ErrorCode::kProtocol:
      return "Protocol";
    case ErrorCode::kMismatch:
      return "Mismatch";
    case ErrorCode::kExhausted:
      return "Exhausted";
    case ErrorCode::kIo:
      return "Io";
    case ErrorCode::kCorrupt:
      return "Corrupt";
    case ErrorCode::kCancelled:
      return "Cancelled";
    case ErrorCode::kUnsupported:
      return "Unsupported";
    case ErrorCode::kFailed:
      return "Failed";
  }
  return "?";
}

void check_failed(const char* file, int line, const char* expression, std::string_view detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%.*s)\n", file, line, expression,
               static_cast<int>(detail.size()), detail.data());
  std::abort();
}

}  // namespace muster
