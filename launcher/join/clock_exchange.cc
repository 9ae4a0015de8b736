// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/clock_exchange.h"

#include <limits>
#include <utility>  // before Asio, for g++ 12

#include <fmt/format.h>

#include "rendezvous/base/env.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::size_t kMostQuestionBytes = 128;

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
  const Instant deadline = SteadyClock::now() + kPatience;
  const auto no_matter = [](const Error&) {};
  if (auto ok = co_await link_.connect(first.host, first.port, deadline, no_matter); !ok) co_return ok;
  if (job_.node_rank == 0) co_return co_await answer();
  for (int i = 0; i < kClockExchanges; ++i)
    if (auto ok = co_await ask(i, deadline); !ok) break;
  link_.close();
  if (!estimate_.best()) co_return Result<void>{};
  const std::string text = skew_text(*estimate_.best(), "node 0");
  if (!text.empty()) log_.warning(fmt::format("preflight of {}: {}", job_.host, text));
  co_return Result<void>{};
}

Awaitable<Result<void>> ClockExchange::answer() {
  const std::string queue = key("asks");
  while (true) {
    if (auto ok = co_await link_.wait(queue, std::nullopt); !ok) co_return ok;
    while (true) {
      auto question = co_await link_.pop(queue);
      if (!question) co_return fail(question.error());
      if (!*question) break;
      const std::int64_t received = wall_nanoseconds();
      if ((*question)->size() > kMostQuestionBytes) continue;
      const std::string answered = key("answer/" + **question);
      const std::string text = fmt::format("{} {}", received, wall_nanoseconds());
      if (auto ok = co_await link_.set(answered, text); !ok) co_return ok;
    }
  }
}

Awaitable<Result<void>> ClockExchange::ask(int number, Instant deadline) {
  // Nobody else's, not even of a former agent of this node.
  const std::string name = fmt::format("{}/{}/{}", job_.node_rank, link_.local_name(), number);
  const std::string queue = key("asks");
  const std::string answered = key("answer/" + name);
  const std::int64_t asked = wall_nanoseconds();
  if (auto ok = co_await link_.push(queue, name); !ok) co_return ok;
  if (auto ok = co_await link_.wait(answered, deadline); !ok) co_return ok;
  const std::int64_t heard = wall_nanoseconds();
  auto text = co_await link_.get(answered);
  if (!text) co_return fail(text.error());
  auto reading = parse_answer(*text);
  if (!reading) co_return fail(reading.error());
  reading->asked = asked;
  reading->heard = heard;
  estimate_.add(*reading);
  co_return co_await link_.remove(answered);
}

}  // namespace muster::launcher
