// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/log.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <mutex>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/base_sink.h>

namespace muster {
namespace {

static_assert(static_cast<int>(LogLevel::kDebug) == spdlog::level::debug &&
              static_cast<int>(LogLevel::kOff) == spdlog::level::off);

class CallingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit CallingSink(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  std::function<void(std::string_view)> write_;
};

/// Waits a moment for room, then drops lines until there is some: whoever does not read a log must not hold
/// up the loop that writes it.
class StderrSink final : public spdlog::sinks::ansicolor_stderr_sink_mt {
  using Sink = spdlog::sinks::ansicolor_stderr_sink_mt;

 public:
  void log(const spdlog::details::log_msg& message) override {
    pollfd entry{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&entry, 1, num_dropped_ > 0 ? 0 : kPatience) == 0) {
      ++num_dropped_;
      return;
    }
    if (const int dropped = num_dropped_.exchange(0); dropped > 0) {
      const std::string text = fmt::format("{} lines were left out here: nobody read them", dropped);
      Sink::log({message.logger_name, spdlog::level::warn, text});
    }
    Sink::log(message);
  }

 private:
  static constexpr int kPatience = 100;  // ms
  std::atomic<int> num_dropped_ = 0;
};

std::shared_ptr<spdlog::logger> make_logger(std::string program, LogLevel level, spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>(std::move(program), std::move(sink));
  logger->set_level(static_cast<spdlog::level::level_enum>(level));
  logger->set_pattern("%n %H:%M:%S.%e %^%l%$: %v");
  logger->flush_on(spdlog::level::debug);
  return logger;
}

}  // namespace

Log::Log(std::string program, LogLevel level)
    : logger_(make_logger(std::move(program), level, std::make_shared<StderrSink>())) {}

Log::Log(std::string program, LogLevel level, std::function<void(std::string_view line)> write)
    : logger_(make_logger(std::move(program), level, std::make_shared<CallingSink>(std::move(write)))) {}

void Log::write(LogLevel level, std::string_view text) const {
  logger_->log(static_cast<spdlog::level::level_enum>(level), text);
}

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
