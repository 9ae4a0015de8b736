// SPDX-License-Identifier: Apache-2.0
// What the load generators share: one epoll loop of plain sockets, source addresses for more connections than
// one address has ports, the clock, and how much processor time another process has used. One thread. Failure
// ends the program with a text: a figure of a half-failed run is worth nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/epoll.h>
#include <sys/types.h>
#include <vector>

#include "rendezvous/base/unique_fd.h"

namespace muster::bench {

/// Prints and exits with 1.
[[noreturn]] void give_up(const std::string& text);

struct Target {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  /// Connections beyond this many take another source address, 127.0.<group>.<n>: one address pair has no
  /// more ports than net.ipv4.ip_local_port_range. The first of group 0 come from 127.0.0.1.
  std::size_t connections_per_source = 16'000;
  unsigned source_group = 0;
};

/// Begins to connect; not blocking. `index`: which connection of this process it is.
[[nodiscard]] UniqueFd start_connect(const Target& target, std::size_t index);
/// Blocks until it is connected.
[[nodiscard]] UniqueFd connect_now(const Target& target, std::size_t index);

/// All of it, or the program ends: what a load generator sends fits into a socket's buffer.
void send_all(int fd, std::string_view bytes);
/// Blocks until bytes are there.
[[nodiscard]] std::string receive_some(int fd);

/// Level-triggered; the number given to add() comes back.
class Poller {
 public:
  Poller();
  void add(int fd, std::uint32_t events, std::uint64_t number);
  void change(int fd, std::uint32_t events, std::uint64_t number);
  /// At most `timeout_ms`; the events are valid until the next call. The program ends when none came: every
  /// wait of a bench has an answer or is a failure.
  [[nodiscard]] std::size_t wait(int timeout_ms, std::string_view what_for);
  [[nodiscard]] const epoll_event& operator[](std::size_t i) const { return events_[i]; }

 private:
  UniqueFd fd_;
  std::array<epoll_event, 512> events_;
};

/// CLOCK_MONOTONIC, comparable between processes.
[[nodiscard]] std::int64_t now_ns();
/// Processor time of all threads of a process so far; 0 for pid 0.
[[nodiscard]] std::int64_t cpu_ns(pid_t pid);
/// Bytes of memory the process has in RAM.
[[nodiscard]] std::int64_t resident_bytes(pid_t pid);

/// Exact below 16 us, then within 3 %: durations of one run.
class Durations {
 public:
  void add(std::int64_t ns);
  /// `part` 0.5: the median. In microseconds.
  [[nodiscard]] double quantile_us(double part) const;

 private:
  std::vector<std::uint32_t> counts_ = std::vector<std::uint32_t>(2048);
  std::uint64_t total_ = 0;
};

}  // namespace muster::bench
