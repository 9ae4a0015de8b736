// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/log_limiter.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace muster {

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

}  // namespace muster
