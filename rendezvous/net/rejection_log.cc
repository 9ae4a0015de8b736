// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/rejection_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace muster::net {
namespace {

constexpr std::array<std::string_view, kNumRejections> kReasons = {
    "for what they sent", "that proved nothing", "that did not read", "because of a limit",
    "for lack of resources"};

}  // namespace

LogLimiter::LogLimiter(std::size_t num_kinds, int burst, Millis interval)
    : burst_(burst),
      interval_(interval),
      kinds_(num_kinds, Kind{static_cast<double>(burst), {}, 0, {}, Instant::max()}) {}

void LogLimiter::refill(Kind& kind, Instant now) const {
  const std::chrono::duration<double> passed = now - std::exchange(kind.at, now);
  kind.lines_left =
      std::min<double>(burst_, kind.lines_left + passed / std::chrono::duration<double>(interval_));
}

bool LogLimiter::admit(std::size_t number, std::string_view line, Instant now) {
  Kind& kind = kinds_[number];
  refill(kind, now);
  if (kind.num_left_out == 0 && kind.lines_left >= 1) {
    kind.lines_left -= 1;
    return true;
  }
  if (kind.num_left_out++ == 0) kind.due = now + interval_;
  kind.last = line;
  return false;
}

std::vector<LogLimiter::Summary> LogLimiter::due(Instant now) {
  std::vector<Summary> out;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    Kind& kind = kinds_[i];
    if (kind.due > now) continue;  // max: none was left out
    refill(kind, now);
    kind.lines_left = std::max(0.0, kind.lines_left - 1);
    sum_up(i, out);
  }
  return out;
}

std::vector<LogLimiter::Summary> LogLimiter::drain() {
  std::vector<Summary> out;
  for (std::size_t i = 0; i < kinds_.size(); ++i)
    if (kinds_[i].num_left_out > 0) sum_up(i, out);
  return out;
}

void LogLimiter::sum_up(std::size_t number, std::vector<Summary>& out) {
  Kind& kind = kinds_[number];
  out.push_back({number, std::exchange(kind.num_left_out, 0), std::exchange(kind.last, {})});
  kind.due = Instant::max();
}

Instant LogLimiter::next_due() const {
  Instant out = Instant::max();
  for (const Kind& kind : kinds_) out = std::min(out, kind.due);
  return out;
}

void RejectionLog::write(Rejection kind, std::string_view line) {
  ++counts_[static_cast<std::size_t>(kind)];
  if (limiter_.admit(static_cast<std::size_t>(kind), line, SteadyClock::now()))
    log_.warning(line);
  else
    arm();
}

void RejectionLog::stop() {
  timer_.cancel();
  write_summaries(limiter_.drain());
}

void RejectionLog::write_summaries(const std::vector<LogLimiter::Summary>& summaries) const {
  for (const auto& [kind, count, last] : summaries)
    log_.warning(
        count == 1 ? last
                   : fmt::format("closed {} more connections {}; the last: {}", count, kReasons[kind], last));
}

void RejectionLog::arm() {
  const Instant next = limiter_.next_due();
  if (armed_ || next == Instant::max()) return;
  armed_ = true;
  timer_.expires_at(next);
  timer_.async_wait(lifetime_.guard([this](const boost::system::error_code& error) {
    armed_ = false;
    if (error) return;
    write_summaries(limiter_.due(SteadyClock::now()));
    arm();
  }));
}

}  // namespace muster::net
