// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/guardian_watch.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace muster::launcher {

GuardianWatch::GuardianWatch(boost::asio::io_context& io, Guardian& guardian, const Log& log,
                             std::function<void(pid_t)> replaced)
    : guardian_(guardian), log_(log), replaced_(std::move(replaced)), pidfd_(io) {
  watch();
}

/// The descriptor ends with this object, and the wait with it.
void GuardianWatch::watch() {
  const auto fd = static_cast<int>(::syscall(SYS_pidfd_open, guardian_.pid(), 0));
  if (fd < 0) return log_.warning(fmt::format("pid {}, the guardian, cannot be watched", guardian_.pid()));
  pidfd_.assign(fd);
  pidfd_.async_wait(boost::asio::posix::descriptor_base::wait_read, [this](boost::system::error_code error) {
    if (!error) on_end();
  });
}

void GuardianWatch::on_end() {
  boost::system::error_code ignored;
  pidfd_.close(ignored);
  const pid_t former = guardian_.pid();
  if (++replacements_ > kMostReplacements)
    return log_.error(fmt::format("pid {}, the guardian, is gone, as {} before it; there is none any more",
                                  former, kMostReplacements));
  if (const auto made = guardian_.replace(); !made)
    return log_.error(fmt::format("pid {}, the guardian, is gone, and there is no other: {}", former,
                                  made.error().message));
  replaced_(guardian_.pid());
  log_.warning(
      fmt::format("pid {}, the guardian of what the workers leave behind, was killed; pid {} takes "
                  "its place",
                  former, guardian_.pid()));
  watch();
}

}  // namespace muster::launcher
