// SPDX-License-Identifier: Apache-2.0
// Processes by number: lists of them, and the title that ps, top and pkill -f show. And what is done to a
// process by its pidfd: signal, wait, reap. Source: prctl(2), pidfd_open(2).
#pragma once

#include <optional>
#include <signal.h>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// The numbers in a list of the kernel's, with blanks or line ends between them.
[[nodiscard]] std::vector<pid_t> parse_pids(std::string_view text);

/// The numbers among the names in /proc or in /proc/PID/task.
[[nodiscard]] std::vector<pid_t> list_pids(const std::string& directory = "/proc");

/// False with errno: it was not sent.
bool send_signal(int pidfd, int signal);
/// Until the process has ended. False: not by the deadline.
bool wait_for_end(int pidfd, Instant deadline);
/// Reaps a child that has ended. Nothing: it is no child, or was reaped; with si_pid 0 it has not ended.
std::optional<siginfo_t> reap_child(int pidfd);

/// Of a process that muster forked for itself: without it the copy of muster's command line is shown, and
/// `pkill -9 -f train.py` ends the guardian together with those it guards; nor is muster's name in it, for
/// `pkill -9 muster`. Called after fork, with one thread. Writes over its own copy of argv; where that is not
/// shown (no /proc) the short name alone is set: the title's first 15 characters.
void set_process_title(const char* title);

}  // namespace muster::launcher
