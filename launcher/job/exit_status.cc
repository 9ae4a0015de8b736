// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/exit_status.h"

#include <algorithm>
#include <signal.h>
#include <string.h>

#include <fmt/format.h>

namespace muster::launcher {

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return "SIG" + (abbreviation != nullptr ? std::string(abbreviation) : std::to_string(signal));
}

std::string how_it_ended(const ProcessEnd& end) {
  if (end.signal == 0) return fmt::format("exited with code {}", end.code);
  return fmt::format("was killed by {}{}", signal_name(end.signal), end.core ? " (core dumped)" : "");
}

bool is_crash_signal(int signal) {
  constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
  return std::ranges::find(kCrashes, signal) != kCrashes.end();
}

int signal_number(std::string_view name) {
  for (int signal = 1; signal < NSIG; ++signal) {
    const std::string full = signal_name(signal);
    if (name == full || name == std::string_view(full).substr(3)) return signal;
  }
  return 0;
}

}  // namespace muster::launcher
