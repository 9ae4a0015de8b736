// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/log.h"

#include <algorithm>
#include <cctype>

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>

namespace muster {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::warn;
}

}  // namespace

Log::Log(std::string program, LogLevel level)
    : level_(level),
      logger_(std::make_shared<spdlog::logger>(std::move(program),
                                               std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>())) {
  logger_->set_level(to_spdlog(level));
  logger_->set_pattern("%n %H:%M:%S.%e %^%l%$: %v");
  logger_->flush_on(spdlog::level::debug);
}

void Log::write(LogLevel level, std::string_view text) const { logger_->log(to_spdlog(level), text); }

LogLevel parse_log_level(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "debug") return LogLevel::kDebug;
  if (lower == "info") return LogLevel::kInfo;
  if (lower == "error" || lower == "critical") return LogLevel::kError;
  if (lower == "off") return LogLevel::kOff;
  return LogLevel::kWarning;
}

}  // namespace muster
