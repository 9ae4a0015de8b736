// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/rejection_log.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace muster::net {
namespace {

constexpr std::array<std::string_view, kNumRejections> kReasons = {
    "for what they sent", "that did not authenticate", "that did not read", "because of a limit",
    "for lack of resources"};

}  // namespace

void RejectionLog::write(Rejection rejection, std::string_view line) {
  const auto number = static_cast<std::size_t>(rejection);
  ++counts_[number];
  Kind& kind = kinds_[number];
  if (kind.num_left_out == 0 && kind.lines_left > 0) {
    --kind.lines_left;
    log_.warning(line);
  } else {
    ++kind.num_left_out;
    kind.last = line;
  }
  wait_second();
}

void RejectionLog::stop() {
  stopped_ = true;
  timer_.cancel();
  for (std::size_t i = 0; i < kNumRejections; ++i) sum_up(i);
}

// False: there was nothing.
bool RejectionLog::sum_up(std::size_t number) {
  const std::uint64_t count = std::exchange(kinds_[number].num_left_out, 0);
  const std::string last = std::exchange(kinds_[number].last, {});
  if (count == 1) log_.warning(last);
  if (count > 1)
    log_.warning(fmt::format("closed {} more connections {}; the last: {}", count, kReasons[number], last));
  return count > 0;
}

void RejectionLog::wait_second() {
  if (stopped_ || std::exchange(waiting_, true)) return;
  lifetime_.call_at(timer_, SteadyClock::now() + std::chrono::seconds(1), [this] {
    waiting_ = false;
    bool again = false;
    for (std::size_t i = 0; i < kNumRejections; ++i) {
      int& left = kinds_[i].lines_left;
      if (!sum_up(i)) left = std::min(left + 1, kBurst);
      again |= left < kBurst;
    }
    if (again) wait_second();
  });
}

}  // namespace muster::net
