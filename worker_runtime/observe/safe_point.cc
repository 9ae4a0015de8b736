// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/inotify.h>
#include <unistd.h>

#include <muster/safe_point.h>

#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {

void announce_safe_point(std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const char* const path = std::getenv(std::string(env::kSafePointFile).c_str());
  if (path == nullptr || *path == '\0') return;
  const UniqueFd removal(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  UniqueFd file(::open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666));
  if (!file) return;
  // Watched before the launcher hears of the file, which it does by the close. IN_ATTRIB: the last link went.
  const bool watched = removal && ::inotify_add_watch(removal.get(), path, IN_ATTRIB | IN_DELETE_SELF) >= 0;
  file.reset();
  if (!watched) return;
  const auto deadline = Clock::now() + patience;
  while (::access(path, F_OK) == 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
    pollfd ready{removal.get(), POLLIN, 0};
    // A signal is the launcher's, that the workers are to end: the caller finds out.
    if (::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000))) < 0) return;
    char events[512];
    while (::read(removal.get(), events, sizeof events) > 0) {
    }
  }
}

}  // namespace muster
