// SPDX-License-Identifier: Apache-2.0
#include <utility>  // before Asio, for g++ 12

#include "launcher/static_rendezvous.h"

#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "launcher/agent_link.h"
#include "launcher/outcome_text.h"
#include "launcher/rank_assignment.h"
#include "launcher/report.h"
#include "rendezvous/base/env.h"
#include "rendezvous/net/server.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kFirstStatus{3};
constexpr std::chrono::seconds kNextStatus{10};

bool is_loopback(std::string_view host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

class StaticRendezvous::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, const Job& job, const Log& log)
      : io_(io), job_(job), log_(log), command_(io), waiting_(io), status_timer_(io) {}

  Awaitable<Result<Assignment>> join(int attempt) {
    const Instant deadline = SteadyClock::now() + job_.join_timeout;
    if (attempt == 0) {
      if (auto ok = open_store(); !ok) co_return fail(ok.error());
      if (auto ok = co_await connect(deadline); !ok) co_return fail(ok.error());
      if (auto ok = co_await claim_node_rank(); !ok) co_return fail(ok.error());
    } else if (host()) {
      auto server = net::Server::listen(io_, listen_options(0), log_);
      if (!server) co_return fail(std::move(server).error());
      attempt_server_ = *std::move(server);
    }
    if (auto ok = co_await gather(attempt, deadline); !ok) co_return fail(ok.error());

    const std::string base = attempt_key(attempt);
    auto range_text = co_await command_.get(fmt::format("{}torchelastic/assigned_ranks/{}", base, job_.node_rank));
    if (!range_text) co_return fail(range_text.error());
    if (range_text->starts_with("!")) co_return fail(ErrorCode::kMismatch, range_text->substr(1));
    auto range = rank_range_from_json(*range_text);
    if (!range) co_return fail(range.error());
    auto port = co_await command_.get(base + "MASTER_PORT");
    if (!port) co_return fail(port.error());
    auto number = parse_integer("MASTER_PORT", *port, 1, 65535);
    if (!number) co_return fail(number.error());
    co_return Assignment{attempt,
                         job_.node_rank,
                         job_.nodes,
                         range->base_rank,
                         range->world_size,
                         range->role_base_rank,
                         range->role_world_size,
                         job_.master_addr,
                         static_cast<std::uint16_t>(*number)};
  }

  Awaitable<Result<AttemptOutcome>> outcome(int attempt) {
    const std::string key = attempt_key(attempt) + "outcome";
    if (auto ok = co_await waiting_.wait(key, std::nullopt); !ok) co_return fail(ok.error());
    auto text = co_await waiting_.get(key);
    if (!text) co_return fail(text.error());
    co_return outcome_from_json(*text);
  }

  Awaitable<Result<void>> announce(int attempt, AttemptOutcome outcome) {
    auto written = co_await command_.set_if_absent(attempt_key(attempt) + "outcome", to_json(outcome));
    if (!written) co_return fail(written.error());
    co_return Result<void>{};
  }

  Awaitable<Result<void>> succeeded(int attempt) {
    auto done = co_await command_.add(attempt_key(attempt) + "done", 1);
    if (!done) co_return fail(done.error());
    if (*done < job_.nodes) co_return Result<void>{};
    co_return co_await announce(attempt, AllSucceeded{});
  }

  Awaitable<Result<void>> leave(Millis patience) {
    if (job_.nodes == 1) co_return Result<void>{};
    const std::string all_left = key("all_left");
    auto gone = co_await command_.add(key("left"), 1);
    if (!gone) co_return fail(gone.error());
    if (*gone == job_.nodes) co_return co_await command_.set(all_left, "1");
    if (!host()) co_return Result<void>{};
    co_return co_await command_.wait(all_left, SteadyClock::now() + patience);
  }

  void cancel() {
    status_timer_.cancel();
    command_.close();
    waiting_.close();
  }

  /// Runs a coroutine that keeps this object alive; `done` is dropped once cancelled.
  template <class T, class Done>
  void start(Awaitable<Result<T>> work, Done done) {
    asio::co_spawn(io_, std::move(work),
                   [self = shared_from_this(), done = std::move(done)](std::exception_ptr thrown, Result<T> result) {
                     if (self->abandoned_) return;
                     if (!thrown) return done(std::move(result));
                     try {
                       std::rethrow_exception(thrown);
                     } catch (const std::exception& error) {
                       done(fail(ErrorCode::kFailed, fmt::format("rendezvous: {}", error.what())));
                     }
                   });
  }

  void abandon() {
    abandoned_ = true;
    cancel();
  }
  const Log& log() const { return log_; }

 private:
  bool host() const { return job_.node_rank == 0; }
  std::string key(std::string_view name) const { return fmt::format("/{}/{}", job_.run_id, name); }
  std::string attempt_key(int attempt) const { return key(fmt::format("attempt_{}/", attempt)); }
  net::ServerOptions listen_options(std::uint16_t port) const {
    net::ServerOptions out;
    // Every address, as torchrun: the given name may map to another one here than on the other nodes.
    if (is_loopback(job_.master_addr)) out.host = job_.master_addr;
    out.port = port;
    return out;
  }

  Result<void> open_store() {
    if (!host()) return {};
    MUSTER_TRY(server_, net::Server::listen(io_, listen_options(job_.master_port), log_));
    return {};
  }

  Awaitable<Result<void>> connect(Instant deadline) {
    const std::string address = !host() ? job_.master_addr : is_loopback(job_.master_addr) ? job_.master_addr : "127.0.0.1";
    const std::uint16_t port = host() ? server_->port() : job_.master_port;
    const Instant begin = SteadyClock::now();
    Instant next_status = begin + kFirstStatus;
    const auto failed_once = [&](const Error& error) {
      const Instant now = SteadyClock::now();
      if (now < next_status) return;
      next_status = now + kNextStatus;
      log_.warning(fmt::format("waiting for node 0: {}; {} s so far, giving up after {} s", error.message,
                               seconds(now - begin), seconds(job_.join_timeout)));
    };
    if (auto ok = co_await command_.connect(address, port, deadline, failed_once); !ok)
      co_return fail(ok.error().code,
                     ok.error().code == ErrorCode::kCancelled
                         ? ok.error().message
                         : fmt::format("{}; gave up after {} s. Is node 0 running, and do --master-addr and "
                                       "--master-port name it?",
                                       ok.error().message, seconds(SteadyClock::now() - begin)));
    co_return co_await waiting_.connect(address, port, deadline, failed_once);
  }

  /// Two agents with the same node rank would overwrite each other's entries.
  Awaitable<Result<void>> claim_node_rank() {
    const std::string mine = fmt::format("{} (pid {})", job_.host, ::getpid());
    auto owner = co_await command_.set_if_absent(key(fmt::format("node/{}", job_.node_rank)), mine);
    if (!owner) co_return fail(owner.error());
    if (*owner == mine) co_return Result<void>{};
    co_return fail(ErrorCode::kMismatch,
                   fmt::format("--node-rank={} was given twice: {} has it already; every node needs its own, 0 to {}",
                               job_.node_rank, *owner, job_.nodes - 1));
  }

  /// Publishes this node, waits for the others, and returns once ranks are assigned.
  Awaitable<Result<void>> gather(int attempt, Instant deadline) {
    const std::string base = attempt_key(attempt);
    const RoleInfo mine{job_.role, job_.node_rank, job_.local_world_size, job_.nodes, job_.max_restarts, job_.host};
    if (auto ok = co_await command_.set(base + "torchelastic/role_info/" + std::to_string(job_.node_rank), to_json(mine)); !ok)
      co_return ok;
    gathering_ = true;
    start(report_missing(base), [](Result<void>) {});
    auto result = host() ? co_await assign(base, deadline)
                         : co_await waiting_.wait(
                               fmt::format("{}torchelastic/assigned_ranks/{}", base, job_.node_rank), deadline);
    gathering_ = false;
    status_timer_.cancel();
    if (result || result.error().code != ErrorCode::kTimeout) co_return result;
    const auto missing = co_await missing_nodes(base);
    co_return fail(ErrorCode::kTimeout,
                   fmt::format("rendezvous: after {} s {} of {} nodes are here; missing: node {}. Were they started "
                               "with the same --nnodes, --master-addr and --master-port?",
                               seconds(job_.join_timeout), job_.nodes - static_cast<int>(missing.size()), job_.nodes,
                               ranges(missing)));
  }

  /// Node 0: collects everybody's description and writes everybody's ranks.
  Awaitable<Result<void>> assign(std::string base, Instant deadline) {
    std::vector<RoleInfo> nodes;
    for (int node = 0; node < job_.nodes; ++node) {
      const std::string role_key = fmt::format("{}torchelastic/role_info/{}", base, node);
      if (auto ok = co_await waiting_.wait(role_key, deadline); !ok) co_return ok;
      auto text = co_await waiting_.get(role_key);
      if (!text) co_return fail(text.error());
      auto info = role_info_from_json(*text);
      if (!info) co_return fail(info.error());
      nodes.push_back(*std::move(info));
    }
    const std::uint16_t port = attempt_server_ ? attempt_server_->port() : server_->port();
    if (auto ok = co_await command_.set(base + "MASTER_PORT", std::to_string(port)); !ok) co_return ok;
    const auto assigned = assign_ranks(nodes);
    for (int node = job_.nodes - 1; node >= 0; --node) {
      const std::string text = assigned ? to_json((*assigned)[static_cast<std::size_t>(node)]) : "!" + assigned.error().message;
      if (auto ok = co_await command_.set(fmt::format("{}torchelastic/assigned_ranks/{}", base, node), text); !ok)
        co_return ok;
    }
    co_return Result<void>{};
  }

  Awaitable<std::vector<int>> missing_nodes(std::string base) {
    std::vector<int> missing;
    for (int node = 0; node < job_.nodes; ++node) {
      auto here = co_await command_.exists(fmt::format("{}torchelastic/role_info/{}", base, node));
      if (!here) break;
      if (!*here) missing.push_back(node);
    }
    co_return missing;
  }

  Awaitable<Result<void>> report_missing(std::string base) {
    const Instant begin = SteadyClock::now();
    auto pause = kFirstStatus;
    while (true) {
      status_timer_.expires_after(std::exchange(pause, kNextStatus));
      co_await status_timer_.async_wait(kAwait);
      if (!gathering_) co_return Result<void>{};
      const auto missing = co_await missing_nodes(base);
      if (!gathering_ || missing.empty()) continue;
      log_.warning(fmt::format("rendezvous: {} of {} nodes are here, waiting for node {}; {} s so far, giving up after {} s",
                               job_.nodes - static_cast<int>(missing.size()), job_.nodes, ranges(missing),
                               seconds(SteadyClock::now() - begin), seconds(job_.join_timeout)));
    }
  }

  template <class Duration>
  static std::int64_t seconds(Duration duration) {
    return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
  }

  asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::unique_ptr<net::Server> server_;          // node 0: the agents' store, and the workers' of attempt 0
  std::unique_ptr<net::Server> attempt_server_;  // node 0: the workers' store after a restart
  AgentLink command_;                            // short requests
  AgentLink waiting_;                            // requests that may wait for long
  asio::steady_timer status_timer_;
  bool gathering_ = false;
  bool abandoned_ = false;
};

StaticRendezvous::StaticRendezvous(asio::io_context& io, const Job& job, const Log& log)
    : impl_(std::make_shared<Impl>(io, job, log)) {}

StaticRendezvous::~StaticRendezvous() { impl_->abandon(); }

void StaticRendezvous::join(int attempt, Joined joined) { impl_->start(impl_->join(attempt), std::move(joined)); }

void StaticRendezvous::watch(int attempt, OutcomeKnown known) { impl_->start(impl_->outcome(attempt), std::move(known)); }

void StaticRendezvous::announce(int attempt, const FailureNotice& notice) {
  // If node 0 cannot be told, it is gone, which the watching connection reports.
  impl_->start(impl_->announce(attempt, notice), [](Result<void>) {});
}

void StaticRendezvous::succeeded(int attempt) { impl_->start(impl_->succeeded(attempt), [](Result<void>) {}); }

void StaticRendezvous::leave(Millis patience, std::function<void()> left) {
  impl_->start(impl_->leave(patience), [left = std::move(left)](Result<void>) { left(); });
}

void StaticRendezvous::cancel() { impl_->cancel(); }

}  // namespace muster::launcher
