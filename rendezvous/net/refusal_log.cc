// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/refusal_log.h"

#include <array>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "rendezvous/net/log_limiter.h"

namespace muster::net {
namespace {

constexpr Millis kInterval{1000};
constexpr std::array<std::string_view, kNumRefusals> kReasons = {"for what they sent", "that proved nothing",
                                                                 "that did not read", "because of a limit",
                                                                 "for lack of resources"};

}  // namespace

class RefusalLog::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& loop, const Log& log)
      : log_(log), limiter_(kNumRefusals, kBurst, kInterval), timer_(loop) {}

  void write(Refusal kind, std::string_view line) {
    ++counts[static_cast<std::size_t>(kind)];
    if (limiter_.admit(static_cast<std::size_t>(kind), line, SteadyClock::now()))
      log_.warning(line);
    else
      arm();
  }

  void stop() {
    timer_.cancel();
    say(limiter_.drain());
  }

  RefusalCounts counts{};

 private:
  void say(const std::vector<LogLimiter::Summary>& summaries) {
    for (const auto& [kind, count, last] : summaries) {
      if (count == 1)
        log_.warning(last);
      else
        log_.warning(fmt::format("closed {} more connections {}; the last: {}", count, kReasons[kind], last));
    }
  }

  void arm() {
    const Instant next = limiter_.next_due();
    if (armed_ || next == Instant::max()) return;
    armed_ = true;
    timer_.expires_at(next);
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const auto self = weak.lock();
      if (!self || error) return;
      self->armed_ = false;
      self->say(self->limiter_.due(SteadyClock::now()));
      self->arm();
    });
  }

  Log log_;
  LogLimiter limiter_;
  boost::asio::steady_timer timer_;
  bool armed_ = false;
};

RefusalLog::RefusalLog(boost::asio::io_context& loop, const Log& log)
    : impl_(std::make_shared<Impl>(loop, log)) {}

RefusalLog::~RefusalLog() {
  stop();
}

void RefusalLog::write(Refusal kind, std::string_view line) {
  impl_->write(kind, line);
}
const RefusalCounts& RefusalLog::counts() const {
  return impl_->counts;
}
void RefusalLog::stop() {
  impl_->stop();
}

}  // namespace muster::net
