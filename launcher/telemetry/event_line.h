// SPDX-License-Identifier: Apache-2.0
// EventLine: one line of --events: a JSON object that says what happened, when, where and in which
// generation. Pure: the time is an argument. Made by Telemetry; the fields are in launcher/reference.md. A
// line fits into a pipe at once (PIPE_BUF), so that it is whole or not there: texts are cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster::launcher {

struct EventTime {
  double wall_s = 0;       // since the epoch
  double monotonic_s = 0;  // CLOCK_MONOTONIC of the host
  [[nodiscard]] static EventTime now();
};

/// What every line says.
struct EventPlace {
  std::string run_id, host;
  int node = -1;                 // its rank among the nodes; -1: none yet
  std::int64_t generation = -1;  // likewise
  int restarts = 0;              // used so far
};

class EventLine {
 public:
  static constexpr std::size_t kMaxBytes = 4096;
  static constexpr std::size_t kMaxTextBytes = 500;  // of a value; a byte may take six

  /// Stays empty, whatever is added: nobody wants the events.
  EventLine() = default;
  EventLine(std::string_view event, const EventPlace& place, const EventTime& time);

  EventLine& add(std::string_view key, std::string_view text);
  EventLine& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  EventLine& add(std::string_view key, std::int64_t number);
  EventLine& add(std::string_view key, int number) { return add(key, std::int64_t{number}); }
  EventLine& add_seconds(std::string_view key, double seconds);
  EventLine& add_flag(std::string_view key, bool set);
  /// Unless it is empty.
  EventLine& add_if(std::string_view key, std::string_view text) {
    return text.empty() ? *this : add(key, text);
  }

  /// With its newline.
  [[nodiscard]] std::string take();

 private:
  EventLine& raw(std::string_view key, std::string_view value);

  std::string text_;
};

/// A JSON string with its quotes; bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string json_string(std::string_view text);

}  // namespace muster::launcher
