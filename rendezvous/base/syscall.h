// SPDX-License-Identifier: Apache-2.0
// System calls as Results: retry on EINTR, and the error's text with its number's name. Threads without
// signals.
#pragma once

#include <cerrno>
#include <functional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <thread>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {

/// Repeats a call that returns -1 with EINTR.
template <class Call>
auto retry_eintr(Call&& call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

/// "No such file or directory (ENOENT)"; thread-safe.
[[nodiscard]] std::string errno_text(int error_number);

/// An Error for a failed call: "<what>: <errno text>", with the code that fits the number.
[[nodiscard]] Error errno_error(std::string_view what, int error_number);
/// Whether that was EADDRINUSE.
[[nodiscard]] bool is_address_in_use(const Error& error);

/// The whole file; kNotFound/kIo, or kExhausted when it is larger than `max_bytes`.
[[nodiscard]] Result<std::string> read_file(const std::string& path,
                                            std::size_t max_bytes = std::size_t{1} << 30);

/// A secret's file: kInvalidArgument where others than its owner may read it. Errors begin with `what` and
/// the path.
[[nodiscard]] Result<void> check_private(std::string_view what, const std::string& path);

/// Waits until the descriptor is ready for `events` (poll(2)). False: not by the deadline.
[[nodiscard]] bool wait_until_ready(int fd, short events, Instant deadline);

/// Writes all bytes to a descriptor, through short writes and EINTR.
[[nodiscard]] Result<void> write_all(int fd, std::string_view bytes);

/// Makes or replaces a file: who reads it finds the old text or all of the new one. Errors begin with the
/// path.
[[nodiscard]] Result<void> replace_file(const std::string& path, std::string_view text, unsigned mode);

/// Readable once the process has ended. Empty: there is none. (glibc 2.36's <sys/pidfd.h> has no C linkage.)
[[nodiscard]] UniqueFd open_pidfd(pid_t pid);

/// Runs `work` on a thread that blocks all signals: they are for the program's own. kExhausted: there are too
/// many.
[[nodiscard]] Result<std::thread> start_quiet_thread(std::function<void()> work);

/// Raises RLIMIT_NOFILE's soft limit to the hard limit; returns the limit in force.
std::size_t raise_descriptor_limit();

}  // namespace muster
