// SPDX-License-Identifier: Apache-2.0
// HangingDriver: the fake library's list of GPUs is a FIFO that nobody writes to, so that a call into the
// driver waits for ever. For tests.
#pragma once

#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/stat.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace muster::test {

class HangingDriver {
 public:
  HangingDriver() {
    REQUIRE(::mkfifo(file().c_str(), 0600) == 0);
    ::setenv("FAKE_NVML", file().c_str(), 1);
  }
  ~HangingDriver() { ::unsetenv("FAKE_NVML"); }
  HangingDriver(const HangingDriver&) = delete;
  HangingDriver& operator=(const HangingDriver&) = delete;

  [[nodiscard]] std::string file() const { return directory_.path() + "/gpus"; }
  /// Until somebody is in the call. From then on it waits in read(2) instead of open(2).
  void wait_until_called() {
    const Instant deadline = SteadyClock::now() + std::chrono::seconds(60);
    while (!writer_ && SteadyClock::now() < deadline) {
      // Without anybody who reads or is about to it is refused.
      writer_.reset(::open(file().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      if (!writer_) ::poll(nullptr, 0, 1);
    }
    REQUIRE(writer_);
  }

 private:
  TemporaryDirectory directory_;
  UniqueFd writer_;
};

}  // namespace muster::test
