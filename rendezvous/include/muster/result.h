// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value, or an Error that says what failed, who it concerns, why, and what to try.
// Used for everything that is expected to happen: a peer is gone, a deadline passed, input is bad, a child
// died. Bugs are MUSTER_CHECKs (muster/check.h); exceptions of libraries are turned into a Result where they
// enter.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace muster {

/// What kind of failure an Error reports; callers branch on it, people read Error::message.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  ///< the caller's input is wrong; trying again does not help
  kNotFound,         ///< a file, key, program or symbol does not exist
  kTimeout,          ///< a deadline passed
  kPeerGone,         ///< the other side closed, died or refused the connection
  kProtocol,         ///< bytes that the protocol does not allow
  kMismatch,         ///< ranks disagree: another operation, size, model or world
  kExhausted,        ///< a limit was reached: descriptors, memory, disk, a configured cap
  kIo,               ///< a system call failed for another reason
  kCorrupt,          ///< a file or record is damaged
  kCancelled,        ///< stopped on request
  kUnsupported,      ///< not available in this build or on this machine
  kFailed,           ///< sticky: an earlier error already broke this object
};

/// The code's name without the k, for logs: "Timeout".
[[nodiscard]] std::string_view to_string(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kFailed;
  std::string message;  ///< call, object, peer or rank, cause, and what to try; one line

  friend bool operator==(const Error&, const Error&) = default;
};

template <class T>
using Result = tl::expected<T, Error>;

/// `return fail(ErrorCode::kTimeout, "...");` from any function that returns a Result.
[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

/// Passes an error on to a caller with another value type.
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

/// The same failure with what was being done put in front: "load train images: <message>".
[[nodiscard]] inline tl::unexpected<Error> fail(std::string_view doing, Error error) {
  error.message = std::string(doing) + ": " + error.message;
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace muster

#define MUSTER_CONCAT_INNER(a, b) a##b
#define MUSTER_CONCAT(a, b) MUSTER_CONCAT_INNER(a, b)

/// MUSTER_TRY(auto x, f());  declares x as f()'s value, or returns f()'s error from the enclosing function.
#define MUSTER_TRY(declaration, expression)                                         \
  auto MUSTER_CONCAT(muster_try_, __LINE__) = (expression);                         \
  if (!MUSTER_CONCAT(muster_try_, __LINE__))                                        \
    return ::muster::fail(std::move(MUSTER_CONCAT(muster_try_, __LINE__)).error()); \
  declaration = *std::move(MUSTER_CONCAT(muster_try_, __LINE__))

/// MUSTER_OK(f());  returns f()'s error from the enclosing function, if there is one.
#define MUSTER_OK(expression)                                                                              \
  do {                                                                                                     \
    if (auto muster_ok_ = (expression); !muster_ok_) return ::muster::fail(std::move(muster_ok_).error()); \
  } while (false)
