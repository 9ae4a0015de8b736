// SPDX-License-Identifier: Apache-2.0
// Log: one line per event on stderr, "muster 12:00:00.000 warning: text". A value handed in by main, no
// global. Thread-safe. Secrets are never passed to it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}

namespace muster {

/// Numbered as in spdlog.
enum class LogLevel { kDebug = 1, kInfo, kWarning, kError, kOff = 6 };

class Log {
 public:
  /// `program` is the word in front of each line.
  explicit Log(std::string program, LogLevel level = LogLevel::kWarning);
  /// Hands each line, with its newline, to `write` instead: for programs that must not block on stderr.
  Log(std::string program, LogLevel level, std::function<void(std::string_view line)> write);

  void debug(std::string_view text) const { write(LogLevel::kDebug, text); }
  void info(std::string_view text) const { write(LogLevel::kInfo, text); }
  void warning(std::string_view text) const { write(LogLevel::kWarning, text); }
  void error(std::string_view text) const { write(LogLevel::kError, text); }

 private:
  void write(LogLevel level, std::string_view text) const;

  std::shared_ptr<spdlog::logger> logger_;
};

/// "debug", "info", "warning" ("warn"), "error", "off" in any case (torchrun's LOGLEVEL); anything else:
/// kWarning.
[[nodiscard]] LogLevel parse_log_level(std::string_view text);

}  // namespace muster
