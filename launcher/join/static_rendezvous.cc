// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/static_rendezvous.h"

#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>  // before Asio, for g++ 12

#include <boost/asio/co_spawn.hpp>
#include <fmt/format.h>

#include "launcher/job/outcome_text.h"
#include "launcher/join/agent_link.h"
#include "launcher/join/clock_exchange.h"
#include "launcher/join/first_node.h"
#include "launcher/join/missing_nodes.h"
#include "launcher/join/node_entries.h"
#include "launcher/join/node_news.h"
#include "launcher/join/rank_assignment.h"
#include "launcher/join/roll_call.h"
#include "launcher/join/unfit_node.h"
#include "rendezvous/base/env.h"
#include "rendezvous/server/server.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::seconds kVerdictPatience{5};
constexpr std::chrono::seconds kLatePatience{60};    // for a node whose preflight takes that much longer
constexpr std::chrono::seconds kReportPatience{10};  // beyond the grace that the others' workers have

}  // namespace

class StaticRendezvous::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, const Job& job, const Log& log)
      : io_(io),
        job_(job),
        log_(log),
        command_(io),
        waiting_(io),
        farewell_(io),
        reports_(io),
        hangs_(io),
        clocks_(io, job, log),
        entries_(job, command_),
        news_(job, entries_, command_),
        missing_(io, job, log, entries_) {}

  Awaitable<Result<Membership>> join(int attempt) {
    const Instant deadline = SteadyClock::now() + job_.join_timeout;
    if (attempt == 0) {
      if (host()) {
        door_ = co_await door_of_first_node(io_, job_, log_);
        auto server = net::Server::listen(io_, listen_options(job_.master_port, true), log_);
        if (!server) co_return fail(std::move(server).error());
        server_ = *std::move(server);
      }
      const FirstNode first{host() ? own_address() : job_.master_addr,
                            host() ? server_->port() : job_.master_port};
      if (auto ok = co_await connect(first, job_, log_, deadline, command_, waiting_); !ok)
        co_return fail(ok.error());
      auto claimed = co_await entries_.claim_node_rank(waiting_, deadline);
      if (!claimed) co_return fail(claimed.error());
      connection_ = *std::move(claimed);
      // Now: the port is that of the workers' store after a restart.
      if (host() && job_.nodes > 1)
        if (auto ok = co_await connect_here(hangs_, deadline); !ok) co_return fail(ok.error());
      if (!job_.unfit.empty()) co_return co_await call_off(deadline);
      if (job_.compare_clocks) start(clocks_.run(first), [](const Result<void>&) {});
    } else if (host()) {
      if (auto ok = co_await open_attempt_store(deadline); !ok) co_return fail(ok.error());
    }
    if (auto ok = co_await gather(attempt, deadline); !ok) co_return fail(ok.error());
    if (called_off_) co_await tell_late_nodes(deadline);
    co_return co_await entries_.read_place(attempt, own_master_addr(job_, door_));
  }

  Awaitable<Result<AttemptOutcome>> outcome(int attempt) {
    NodeNews::Heard heard = hears();
    co_return co_await news_.read(waiting_, attempt, std::move(heard));
  }
  [[nodiscard]] NodeNews& news() { return news_; }

  void hear_hangs(int attempt, HangHeard heard) {
    heard_attempt_ = attempt;
    heard_ = std::move(heard);
    if (!host() || !hangs_.connected() || std::exchange(reads_inbox_, true)) return;
    start(news_.read_inbox(hangs_, hears()), [](const Result<void>&) {});
  }

  Awaitable<Result<void>> decline(int attempt, FailureNotice notice) {
    if (host() && !lost_) lost_ = notice;  // for assign(), if it is under way
    co_return co_await entries_.decline(attempt, notice);
  }

  Awaitable<Result<void>> leave(Millis patience) {
    if (job_.nodes == 1 || connection_.empty()) co_return Result<void>{};
    if (!host()) co_return co_await entries_.mark_left(connection_);
    // For those who came and are neither through nor gone. On a connection of its own: waiting_ may wait for
    // an outcome, and command_ is needed to note connections that end meanwhile.
    const Instant deadline = SteadyClock::now() + patience;
    if (auto ok = co_await connect_here(farewell_, deadline); !ok) co_return ok;
    co_return co_await entries_.wait_until_left(farewell_, deadline);
  }

  Awaitable<Result<void>> send_report(int attempt, std::string part) {
    co_return co_await entries_.send_report(attempt, std::move(part));
  }

  /// On a connection of its own, for the same reasons as in leave().
  Awaitable<Result<void>> gather_reports(int attempt, PartCame came) {
    const Instant deadline = SteadyClock::now() + job_.grace + kReportPatience;
    if (auto ok = co_await connect_here(reports_, deadline); !ok) co_return ok;
    co_return co_await entries_.gather_reports(reports_, attempt, deadline, std::move(came));
  }

  void cancel() {
    missing_.end();
    command_.close();
    waiting_.close();
    reports_.close();
    farewell_.close();
    hangs_.close();
    clocks_.close();
  }

  /// Runs a coroutine that keeps this object alive; `done` is dropped once cancelled.
  template <class T, class Done>
  void start(Awaitable<Result<T>> work, Done done) {
    asio::co_spawn(io_, std::move(work),
                   [self = shared_from_this(), done = std::move(done)](const std::exception_ptr& thrown,
                                                                       Result<T> result) {
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
  bool host() const { return job_.node_rank == 0; }

 private:
  NodeNews::Heard hears() {
    return [this](const control::Hang& word) {
      if (const auto call = word.generation == heard_attempt_ && !abandoned_ ? heard_ : nullptr) call(word);
    };
  }
  std::string own_address() const { return door_.empty() ? "127.0.0.1" : door_; }
  /// `agents`: they keep connections to it, whose end is told.
  net::ServerOptions listen_options(std::uint16_t port, bool agents) {
    net::ServerOptions out;
    if (agents)
      out.on_close = [weak = weak_from_this()](const std::string& connection) {
        if (const auto self = weak.lock(); self && !self->abandoned_) self->connection_closed(connection);
      };
    out.host = door_;
    out.port = port;
    return out;
  }

  /// Node 0: to the store that accepts, unless that was done before.
  Awaitable<Result<void>> connect_here(AgentLink& link, Instant deadline) {
    if (link.connected()) co_return Result<void>{};
    const auto no_matter = [](const Error&) {};
    co_return co_await link.connect(own_address(), server_->port(), deadline, no_matter);
  }

  /// Node 0: an empty store for the workers of another attempt, at the same port, which may be the only one
  /// that a firewall lets through. The agents stay connected to theirs. A node that is late reads so here.
  Awaitable<Result<void>> open_attempt_store(Instant deadline) {
    for (AgentLink* link : {&farewell_, &reports_})
      if (auto ok = co_await connect_here(*link, deadline); !ok) co_return ok;
    net::ServerOptions options = listen_options(server_->port(), false);
    options.listen_fd = (attempt_server_ ? attempt_server_ : server_)->release_listener().release();
    attempt_server_.reset();  // and what was connected to it
    auto server = net::Server::listen(io_, options, log_);
    if (!server) co_return fail(std::move(server).error());
    attempt_server_ = *std::move(server);
    AgentLink link(io_);
    if (auto ok = co_await connect_here(link, deadline); !ok) co_return ok;
    co_return co_await entries_.turn_away_late_nodes(link);
  }

  /// An unfit node's only word. As node 0 it stays for the others, who come to hear it.
  Awaitable<Result<Membership>> call_off(Instant deadline) {
    const FailureNotice notice = unfit_notice(job_);
    if (auto ok = co_await entries_.call_off(notice); !ok) co_return fail(ok.error());
    if (host()) {
      attempt_ = 0;  // who has come and gone again has heard it, and makes no room for another
      if (auto ok = co_await assign(0, deadline); !ok) co_return fail(ok.error());
      std::vector<int> others(static_cast<std::size_t>(job_.nodes) - 1);
      std::iota(others.begin(), others.end(), 1);
      if (auto ok = co_await entries_.wait_until_claimed(waiting_, others, deadline); !ok)
        co_return fail(ok.error());
    }
    co_return notice;
  }

  /// Publishes this node, waits for the others, and returns once ranks are assigned.
  Awaitable<Result<void>> gather(int attempt, Instant deadline) {
    const RoleInfo mine{job_.role,         job_.node_rank, job_.local_world_size, job_.nodes,
                        job_.max_restarts, job_.host,      connection_,           entries_.program()};
    const std::string own_info = entries_.role_info(attempt, job_.node_rank);
    const std::string own_ranks = entries_.ranks(attempt, job_.node_rank);
    if (auto ok = co_await command_.set(own_info, to_json(mine)); !ok) co_return ok;
    start(missing_.report(attempt), [](const Result<void>&) {});
    // Not one conditional expression: g++ 12 destroys the temporaries of both branches.
    Result<void> result;
    if (host()) {
      result = co_await assign(attempt, deadline);
    } else {
      // Node 0 began to wait at about the same time, and says who is missing while the others are here.
      result = co_await waiting_.wait(own_ranks, deadline + kVerdictPatience);
    }
    missing_.end();
    if (result || result.error().code != ErrorCode::kTimeout) co_return result;
    const std::string text = co_await missing_.verdict(attempt);
    if (host()) {
      const std::string refusal = "!" + text;
      if (auto ok = co_await entries_.refuse(attempt, refusal); !ok) co_return ok;
    }
    co_return fail(ErrorCode::kTimeout, text);
  }

  /// Node 0: collects everybody's description and writes everybody's ranks.
  Awaitable<Result<void>> assign(int attempt, Instant deadline) {
    RollCall roll(job_.nodes);
    while (true) {
      // Who published itself and left again before the first assignment makes room for another.
      for (const std::string& connection : std::exchange(gone_, {})) roll.gone(connection);
      if (roll.complete()) break;
      const int node = roll.missing();
      const std::string role_key = entries_.role_info(attempt, node);
      if (auto ok = co_await waiting_.wait(role_key, deadline); !ok) co_return ok;
      auto text = co_await waiting_.get(role_key);
      if (!text) co_return fail(text.error());
      if (text->empty()) continue;
      if (text->starts_with("!")) {
        if (attempt == 0) called_off_ = true;
        if (attempt == 0) attempt_ = 0;  // who comes and goes from now on has heard it, and makes no room
        co_return co_await entries_.refuse(attempt, *text);
      }
      auto info = role_info_from_json(*text);
      if (!info) co_return fail(info.error());
      if (attempt_ < 0 && closed_.contains(info->connection)) {
        if (auto ok = co_await entries_.forget(info->connection); !ok) co_return ok;
        continue;
      }
      roll.came(node, *std::move(info));
    }
    if (lost_) {
      const std::string refusal = "!" + to_json(AttemptOutcome(*lost_));
      co_return co_await entries_.refuse(attempt, refusal);
    }
    const std::vector<RoleInfo> nodes = roll.take();
    // From here on a connection's end is an event of this attempt.
    attempt_ = attempt;
    members_.clear();
    for (const RoleInfo& node : nodes) members_.emplace(node.connection, node);
    closed_.clear();
    const auto assigned = assign_ranks(nodes);
    co_return co_await entries_.publish_ranks(attempt, server_->port(), assigned);
  }

  /// Node 0: the end of an agent's connection is the end of that agent. Before the first assignment it makes
  /// room for another. Later it is announced as the attempt's failure, unless the attempt has an outcome
  /// already; if that is a restart, the next one does not begin.
  void connection_closed(const std::string& connection) {
    const auto no_matter = [](const Result<void>&) {};
    if (attempt_ < 0) {
      closed_.insert(connection);
      gone_.push_back(connection);
      start(entries_.forget(connection), no_matter);
      start(entries_.mark_left(connection), no_matter);
      return;
    }
    if (called_off_) start(entries_.mark_left(connection), no_matter);
    const auto member = members_.find(connection);
    if (member == members_.end() || member->second.node_rank == job_.node_rank) return;
    const RoleInfo& node = member->second;
    const FailureNotice notice = loss_of(node);
    if (!lost_) lost_ = notice;
    start(news_.end(attempt_, notice), no_matter);
    start(entries_.give_up_report(attempt_, node.node_rank), no_matter);
    start(entries_.give_up_on(attempt_ + 1, notice), no_matter);
    start(entries_.mark_left(connection), no_matter);
  }

  /// Node 0 knows that the job is called off, by a node whose preflight failed as a rule; a node whose own
  /// takes longer would find nobody who tells it.
  Awaitable<void> tell_late_nodes(Instant deadline) {
    const auto late = co_await entries_.unclaimed();
    if (late.empty()) co_return;
    log_.warning(fmt::format(
        "rendezvous: the job is called off; waiting {} s at most for node {} to come and hear why",
        kLatePatience.count(), entries_.describe(late)));
    const Instant end = std::min<Instant>(deadline, SteadyClock::now() + kLatePatience);
    if (auto ok = co_await connect_here(reports_, end); !ok) co_return;
    (void)co_await entries_.wait_until_claimed(reports_, late, end);
  }

  asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::unique_ptr<net::Server> server_;          // node 0: the agents' store, and the workers' of attempt 0
  std::unique_ptr<net::Server> attempt_server_;  // node 0: the workers' store after a restart
  AgentLink command_;                            // short requests
  AgentLink waiting_;                            // requests that may wait for long
  AgentLink farewell_;                           // node 0: to see the others off
  AgentLink reports_;                            // node 0: for what the others report
  AgentLink hangs_;                              // node 0: for what they say of workers that hang
  ClockExchange clocks_;                         // where they are to be compared
  NodeEntries entries_;                          // through command_
  NodeNews news_;                                // likewise
  MissingNodes missing_;
  std::string door_;        // node 0: see first_node.h
  std::string connection_;  // waiting_'s name, once this node's rank is claimed
  HangHeard heard_;
  int heard_attempt_ = -1;
  bool reads_inbox_ = false;
  int attempt_ = -1;                         // node 0: the last one whose ranks were assigned
  std::map<std::string, RoleInfo> members_;  // node 0: of that attempt, by connection
  std::set<std::string> closed_;             // node 0: connections that ended before the first assignment
  std::vector<std::string> gone_;            // node 0: those that assign() has not looked at yet
  bool called_off_ = false;                  // node 0: the job, before its first attempt
  std::optional<FailureNotice> lost_;  // node 0: why no other attempt may begin: a member is gone or declined
  bool abandoned_ = false;
};

StaticRendezvous::StaticRendezvous(asio::io_context& io, const Job& job, const Log& log)
    : impl_(std::make_shared<Impl>(io, job, log)) {}

StaticRendezvous::~StaticRendezvous() {
  impl_->abandon();
}

void StaticRendezvous::join(int attempt, Joined joined) {
  impl_->start(impl_->join(attempt), std::move(joined));
}

void StaticRendezvous::watch(int attempt, OutcomeKnown known) {
  impl_->start(impl_->outcome(attempt), std::move(known));
}

void StaticRendezvous::announce(int attempt, const FailureNotice& notice) {
  // If node 0 cannot be told, it is gone, which the watching connection reports.
  impl_->start(impl_->news().end(attempt, notice), [](const Result<void>&) {});
}

void StaticRendezvous::succeeded(int attempt) {
  impl_->start(impl_->news().succeeded(attempt), [](const Result<void>&) {});
}

void StaticRendezvous::send_report(int attempt, std::string part) {
  impl_->start(impl_->send_report(attempt, std::move(part)), [](const Result<void>&) {});
}

void StaticRendezvous::gather_reports(int attempt, PartCame came) {
  impl_->start(impl_->gather_reports(attempt, std::move(came)), [](const Result<void>&) {});
}

void StaticRendezvous::say_hang(int attempt, control::Hang word) {
  impl_->start(impl_->news().tell(attempt, std::move(word)), [](const Result<void>&) {});
}

void StaticRendezvous::hear_hangs(int attempt, HangHeard heard) {
  impl_->hear_hangs(attempt, std::move(heard));
}

void StaticRendezvous::decline(int attempt, const FailureNotice& notice) {
  // Others count on this node from its first attempt on, and on node 0 always. Until then it can be replaced.
  if (attempt == 0 && !impl_->host()) return impl_->cancel();
  impl_->start(impl_->decline(attempt, notice), [](const Result<void>&) {});
}

void StaticRendezvous::leave(Millis patience, std::function<void()> left) {
  impl_->start(impl_->leave(patience), [left = std::move(left)](const Result<void>&) { left(); });
}

}  // namespace muster::launcher
