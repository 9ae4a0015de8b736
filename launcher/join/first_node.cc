// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/first_node.h"

#include <chrono>
#include <utility>  // before Asio, for g++ 12

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "launcher/network/listening.h"
#include "launcher/network/name_look_up.h"
#include "launcher/text/seconds_text.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;

}  // namespace

Awaitable<std::string> door_of_first_node(asio::io_context& io, const Job& job, const Log& log) {
  if (is_loopback(job.master_addr)) co_return job.master_addr;
  if (!is_confined(job.elastic)) co_return std::string();
  const std::vector<InterfaceAddress> own = interface_addresses();
  const std::vector<std::string> chosen = listening_addresses(job.elastic, {job.elastic.local_addr}, own);
  if (const auto text = unconfined_text(job.elastic, chosen)) log.warning(*text);
  if (chosen.empty()) co_return std::string();
  if (is_numeric_address(job.master_addr)) co_return addresses_at(job.master_addr, chosen, own).front();
  std::vector<std::string> found;
  asio::steady_timer told(io, Instant::max());
  NameLookUp look_up(io);
  look_up.start(job.master_addr, [&](const std::vector<std::string>& addresses) {
    found = addresses;
    told.cancel();
  });
  co_await told.async_wait(asio::as_tuple(asio::use_awaitable));
  if (const std::string text = text_of_place("node 0", job.master_addr, found, chosen, job.elastic, own);
      !text.empty())
    log.warning(text);
  const std::vector<std::string> further = further_addresses(found, chosen, own);
  co_return further.empty() ? chosen.front() : further.front();
}

std::string own_master_addr(const Job& job, const std::string& door) {
  return door.empty() || is_numeric_address(job.master_addr) ? job.master_addr : door;
}

Awaitable<Result<void>> connect(FirstNode first, const Job& job, const Log& log, Instant deadline,
                                AgentLink& command, AgentLink& waiting) {
  const Instant begin = SteadyClock::now();
  Instant next_status = begin + kFirstStatus;
  const auto failed_once = [&](const Error& error) {
    const Instant now = SteadyClock::now();
    if (now < next_status) return;
    next_status = now + kNextStatus;
    log.warning(fmt::format("waiting for node 0: {}; {} s so far, giving up after {} s", error.message,
                            whole_seconds(now - begin), whole_seconds(job.join_timeout)));
  };
  if (auto ok = co_await command.connect(first.host, first.port, deadline, failed_once); !ok) {
    Error error = std::move(ok).error();
    if (error.code != ErrorCode::kCancelled)
      error.message += fmt::format(
          "; gave up after {:.1f} s. Is node 0 running, and do --master-addr and --master-port name it?",
          std::chrono::duration<double>(SteadyClock::now() - begin).count());
    co_return fail(std::move(error));
  }
  co_return co_await waiting.connect(first.host, first.port, deadline, failed_once);
}

}  // namespace muster::launcher
