// SPDX-License-Identifier: Apache-2.0
// EventLog: the file of --events, to which whole lines are added. Several agents may write to one local file.
// Owned by main, written by Telemetry; one thread. What cannot be written (a full disk, a pipe that nobody
// reads) waits, up to kMostWaiting, for the next line; what is beyond that is counted. It is said once, and
// ends nothing. A file on a network disk that does not answer holds the writer as any other file there would.
// Source: write(2), pipe(7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

struct EventTime {
  double wall_s = 0;       // since the epoch
  double monotonic_s = 0;  // CLOCK_MONOTONIC of the host

  [[nodiscard]] static EventTime now();
};

/// A line fits into a pipe at once (PIPE_BUF), so that it is whole or not there.
inline constexpr std::size_t kMaxEventBytes = 4096;

/// One line of --events: a JSON object that says what happened, when, where and in which generation, and the
/// `fields` of this event without the empty texts; they are in launcher/reference.md. `assignment`: the last
/// one. The texts of a line that would be too long are cut. Pure.
[[nodiscard]] std::string event_line(std::string_view event, const Job& job,
                                     const std::optional<Assignment>& assignment, const EventTime& time,
                                     const nlohmann::ordered_json& fields);

class EventLog {
 public:
  static constexpr std::size_t kMostWaiting = 64 * 1024;

  /// `file`: made if it is not there; "{host}" in it becomes `host`. kInvalidArgument: it cannot be opened.
  [[nodiscard]] static Result<EventLog> open(std::string_view file, std::string_view host);

  /// One or more whole lines.
  void write(std::string_view lines, const Log& log);

  /// Lines that were left out.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  EventLog(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  /// 0, or the errno that keeps it from going on.
  int drain();

  std::string path_;
  UniqueFd fd_;
  std::string waiting_;  // begins where the file ends, within a line perhaps
  std::uint64_t dropped_ = 0;
  bool stuck_ = false;
};

}  // namespace muster::launcher
