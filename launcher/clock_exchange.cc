// SPDX-License-Identifier: Apache-2.0
#include "launcher/clock_exchange.h"

#include <limits>
#include <utility>  // before Asio, for g++ 12

#include <fmt/format.h>

#include "rendezvous/base/env.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kAnswerPatience{10};

/// Of "<received> <answered>".
Result<ClockReading> parse_answer(std::string_view text) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto space = text.find(' ');
  if (space == std::string_view::npos) return fail(ErrorCode::kProtocol, "an answer about clocks is no pair");
  ClockReading out;
  MUSTER_TRY(out.received, parse_integer("clock", text.substr(0, space), 0, kMost));
  MUSTER_TRY(out.answered, parse_integer("clock", text.substr(space + 1), 0, kMost));
  return out;
}

}  // namespace

ClockExchange::ClockExchange(boost::asio::io_context& io, const Job& job, const Log& log)
    : job_(job), log_(log), link_(io) {}

std::string ClockExchange::key(std::string_view name) const {
  return fmt::format("/{}/clock/{}", job_.run_id, name);
}

Awaitable<Result<void>> ClockExchange::run(FirstNode first) {
  if (job_.nodes == 1) co_return Result<void>{};
  const Instant deadline = SteadyClock::now() + kAnswerPatience;
  const auto no_matter = [](const Error&) {};
  if (auto ok = co_await link_.connect(first.host, first.port, deadline, no_matter); !ok) co_return ok;
  if (job_.node_rank == 0) co_return co_await answer();
  ClockEstimate estimate;
  for (int i = 0; i < kClockExchanges; ++i)
    if (auto ok = co_await ask(estimate); !ok) break;
  link_.close();
  if (!estimate.best()) co_return Result<void>{};
  const std::string text = skew_text(*estimate.best(), "node 0");
  if (!text.empty()) log_.warning(fmt::format("preflight of {}: {}", job_.host, text));
  co_return Result<void>{};
}

Awaitable<Result<void>> ClockExchange::answer() {
  for (std::int64_t number = 1;; ++number) {
    const std::string asked = key(fmt::format("ask/{}", number));
    if (auto ok = co_await link_.wait(asked, std::nullopt); !ok) co_return ok;
    const std::int64_t received = wall_nanoseconds();
    const std::string answered = key(fmt::format("answer/{}", number));
    const std::string text = fmt::format("{} {}", received, wall_nanoseconds());
    if (auto ok = co_await link_.set(answered, text); !ok) co_return ok;
    if (auto ok = co_await link_.remove(asked); !ok) co_return ok;
  }
}

Awaitable<Result<void>> ClockExchange::ask(ClockEstimate& estimate) {
  const std::string counter = key("asks");
  auto number = co_await link_.add(counter, 1);
  if (!number) co_return fail(number.error());
  const std::string question = key(fmt::format("ask/{}", *number));
  const std::string answered = key(fmt::format("answer/{}", *number));
  const std::string mark = "?";
  const std::int64_t asked = wall_nanoseconds();
  if (auto ok = co_await link_.set(question, mark); !ok) co_return ok;
  if (auto ok = co_await link_.wait(answered, SteadyClock::now() + kAnswerPatience); !ok) co_return ok;
  const std::int64_t heard = wall_nanoseconds();
  auto text = co_await link_.get(answered);
  if (!text) co_return fail(text.error());
  auto reading = parse_answer(*text);
  if (!reading) co_return fail(reading.error());
  reading->asked = asked;
  reading->heard = heard;
  estimate.add(*reading);
  co_return co_await link_.remove(answered);
}

}  // namespace muster::launcher
