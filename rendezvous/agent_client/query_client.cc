// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/agent_client/query_client.h"

#include <exception>
#include <memory>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "rendezvous/agent_client/control_link.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/lifetime.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxPages = 1000;

asio::awaitable<Result<QueryAnswer>> ask(std::shared_ptr<ControlLink> link, std::string job,
                                         Instant deadline) {
  if (auto welcome = co_await link->open(0, deadline); !welcome) co_return fail(std::move(welcome).error());
  QueryAnswer out;
  control::Query question{std::move(job), {}, 0};
  for (std::size_t page = 0; page < kMaxPages; ++page) {
    link->send(question);
    std::size_t entries = 0;
    for (bool more = true; more;) {
      auto message = co_await link->receive();
      if (!message) co_return fail(std::move(message).error());
      if (++entries > 2 * control::kMaxQueryEntries + 1)
        co_return fail(ErrorCode::kProtocol, "{} answers with more than was asked for", link->endpoint());
      if (auto* state = std::get_if<control::JobState>(&*message)) {
        // Asked for one job page after page, each begins with it.
        if (out.nodes.empty()) out.jobs.push_back(std::move(*state));
      } else if (auto* node = std::get_if<control::NodeState>(&*message)) {
        out.nodes.push_back(std::move(*node));
      } else if (auto* over = std::get_if<control::QueryEnd>(&*message)) {
        out.over = std::move(*over);
        more = false;
      } else {
        co_return fail(ErrorCode::kProtocol, "{} instead of an answer from {}", control::name_of(*message),
                       link->endpoint());
      }
    }
    if (!out.over.more) co_return out;
    question.after = out.over.after;
    question.from_number = out.over.from_number;
  }
  co_return fail(ErrorCode::kExhausted, "{} has too many jobs to list", link->endpoint());
}

}  // namespace

Result<QueryAnswer> query(const QueryOptions& options) {
  asio::io_context loop(1);
  const Instant deadline = SteadyClock::now() + options.timeout;
  const auto link = std::make_shared<ControlLink>(loop, options);
  LoopTimer watchdog(loop, deadline);
  watchdog.async_wait([&](const auto& error) {
    if (!error) link->close(ControlLink::kNoAnswer);
  });
  Result<QueryAnswer> out = fail(ErrorCode::kCancelled, "not asked");
  asio::co_spawn(loop, ask(link, options.job, deadline),
                 [&](const std::exception_ptr& failed, Result<QueryAnswer> answer) {
                   watchdog.cancel();
                   link->close();
                   out = failed ? fail(ErrorCode::kIo, "the event loop failed") : std::move(answer);
                 });
  loop.run();
  return out;
}

}  // namespace muster::net
