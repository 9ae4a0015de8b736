// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/elastic_rendezvous.h"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/job/generation_outcome.h"
#include "launcher/join/coordinator_seat.h"
#include "launcher/join/etcd_seat.h"
#include "launcher/network/listening.h"
#include "launcher/network/machine_id.h"
#include "launcher/plan/program.h"
#include "rendezvous/net/dial.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
constexpr std::chrono::seconds kFirstWord{3};  // a gathering that takes less is not worth one
constexpr std::chrono::seconds kShortGoodBye{5};
constexpr Millis kLongestRest{std::int64_t{1000} * 86400 * 365};

/// For a node that is between two generations.
FailureNotice final_notice(AttemptOutcome outcome) {
  if (auto* notice = std::get_if<FailureNotice>(&outcome)) {
    notice->restart = false;
    return std::move(*notice);
  }
  FailureNotice spared;
  spared.text = "the job succeeded without this node";
  return spared;
}

int exit_code_of(const Error& no_seat) {
  if (no_seat.code == ErrorCode::kExhausted) return kExitPortInUse;
  if (no_seat.code == ErrorCode::kInvalidArgument) return kExitUsage;
  if (no_seat.code == ErrorCode::kTimeout || no_seat.code == ErrorCode::kMismatch) return kExitRendezvous;
  return kExitSystem;
}

std::unique_ptr<Seat> make_seat(asio::io_context& io, const Job& job, const Log& log) {
  if (job.elastic.etcd) return std::make_unique<EtcdSeat>(io, job, log);
  return std::make_unique<CoordinatorSeat>(io, job, log);
}

}  // namespace

ElasticRendezvous::ElasticRendezvous(asio::io_context& io, const Job& job, const Log& log)
    : io_(io),
      job_(job),
      log_(log),
      seat_(make_seat(io, job, log)),
      patience_(io),
      alive_(std::make_shared<bool>(true)) {}

ElasticRendezvous::~ElasticRendezvous() {
  *alive_ = false;
}

void ElasticRendezvous::join(int, Joined joined) {
  joined_ = std::move(joined);
  times_ = {};
  // The job ended while the workers here were being stopped: the coordinator has nothing to add.
  if (outcome_) return finish_join(final_notice(*std::exchange(outcome_, {})));
  patient_ = true;
  patience_.expires_after(kFirstWord);
  patience_.async_wait([this, alive = alive_](const auto& error) {
    if (error || !*alive) return;
    patient_ = false;
    speak();
  });
  if (client_) return next_generation();
  own_ = interface_addresses();
  // Of one node nothing has to be reached from elsewhere, wherever its coordinator is.
  offered_ = is_loopback(job_.elastic.endpoint_host) || job_.one_node()
                 ? std::vector{std::string(job_.elastic.endpoint_host == "::1" ? "::1" : "127.0.0.1")}
                 : offered_addresses(own_, {job_.elastic.local_addr, job_.elastic.interface,
                                            source_address(job_.elastic.endpoint_host)});
  if (offered_.empty())
    return fail_join(kExitUsage, fmt::format("--iface={}: this host has no such interface with an address",
                                             job_.elastic.interface));
  if (const auto text = unconfined_text(job_.elastic, listening_addresses(job_.elastic, offered_, own_)))
    log_.warning(*text);
  if (const auto open = open_port(); !open) return fail_join(kExitSystem, open.error().message);
  Seat::Callbacks callbacks;
  callbacks.decided = [this](const Result<void>& seat) { connect(seat); };
  callbacks.moved = [this] {
    if (client_) client_->redirect(seat_->host(), seat_->port());
  };
  callbacks.lost = [this](const Error& error) {
    if (client_) client_->close();
    on_lost(error);
  };
  seat_->take(own_, offered_, std::move(callbacks));
}

Result<void> ElasticRendezvous::open_port() {
  if (port_.fd || job_.elastic.store_proxy || !job_.unfit.empty()) return {};
  MUSTER_TRY(port_, listen_at(listening_addresses(job_.elastic, offered_, own_), 0));
  return {};
}

void ElasticRendezvous::connect(const Result<void>& seat) {
  if (!joined_) return;  // declined meanwhile
  if (!seat) return fail_join(exit_code_of(seat.error()), seat.error().message);
  if (seat_->taken()) log_.info(fmt::format("this agent runs the coordinator at {}", seat_->title()));
  client_ = std::make_unique<net::ControlClient>(io_, client_options(), client_events());
  client_->start();
}

net::ControlClientOptions ElasticRendezvous::client_options() {
  const ElasticJob& elastic = job_.elastic;
  net::ControlClientOptions out;
  out.host = seat_->host();
  out.port = seat_->port();
  out.job = job_.run_id;
  out.secret = elastic.secret;
  out.tls = elastic.tls;
  out.tls_name = elastic.endpoint_host;
  out.request.id = seat_->node();
  out.request.host = job_.host;
  out.request.machine = machine_id();
  out.request.role = job_.role;
  out.request.wanted_ranks = job_.local_world_size;
  out.request.order = elastic.order;
  out.request.addresses = offered_;
  out.request.master_port = port_.port;
  out.request.unfit = job_.unfit;
  out.request.program = short_name(job_.command);
  out.settings = elastic.rules;
  out.compare_clocks = job_.compare_clocks;
  out.connect_timeout = elastic.connect_timeout;
  out.reconnect_for = elastic.reconnect_for;
  out.born = born_;
  return out;
}

net::ControlEvents ElasticRendezvous::client_events() {
  net::ControlEvents out;
  out.assigned = [this](const auto& message) { on_assigned(message); };
  out.waiting = [this](const auto& message) { on_waiting(message); };
  out.generation_over = [this](const auto& message) { on_generation_over(message); };
  out.closed = [this](const auto& message) { on_closed(message); };
  out.lost = [this](const auto& error) { on_lost(error); };
  out.report = [this](const control::Report& part) {
    parts_.push_back(part);
    hand_over_parts();
  };
  out.hang = [this](const control::Hang& word) {
    if (const auto call = joined_ ? nullptr : hang_heard_) call(word);
  };
  out.linked = [this](bool there) {
    linked_ = there;
    if (there && !times_.gathered) times_.connected = SteadyClock::now();
    // Who asked is not answered any more.
    if (const auto passed = there ? nullptr : std::exchange(safe_point_passed_, {})) passed();
    if (proxy_) proxy_->linked(there);
  };
  out.safe_point_passed = [this](std::int64_t generation) {
    if (!assigned_ || generation != assigned_->generation) return;
    if (const auto passed = std::exchange(safe_point_passed_, {})) passed();
  };
  out.remark = [this](const std::string& text) { log_.warning(text); };
  out.store = [this](const auto& message) { on_store(message); };
  out.drained = [this] {
    if (proxy_) proxy_->drained();
  };
  out.clock = [this](const ClockOffset& offset) {
    const std::string text = skew_text(offset, fmt::format("the coordinator at {}", seat_->title()));
    if (!text.empty()) log_.warning(fmt::format("preflight of {}: {}", job_.host, text));
  };
  out.trying = [this](const Error& error) {
    // While workers run, a broken connection is news.
    say(fmt::format("waiting for the coordinator at {}: {}{}", seat_->title(), error.message,
                    seat_->in_the_way(error)),
        !joined_);
  };
  return out;
}

void ElasticRendezvous::next_generation() {
  store_.reset();
  proxy_.reset();
  if (const auto open = open_port(); !open) return fail_join(kExitSystem, open.error().message);
  client_->ready(assigned_->generation, port_.port, std::exchange(reached_, {}));
}

// What the coordinator says.

void ElasticRendezvous::on_assigned(const control::Assignment& assignment) {
  assigned_ = assignment;
  times_.gathered = SteadyClock::now();
  outside_ = false;
  reach_.reset();
  seat_->welcomed();
  if (!joined_) return;
  hush();
  log_.info(fmt::format("generation {}: node {} of {}, ranks {} to {} of {}", assignment.generation,
                        assignment.group_rank, assignment.group_world_size, assignment.base_rank,
                        assignment.base_rank + assignment.ranks - 1, assignment.world_size));
  if (assignment.group_rank == 0) warn_of_strangers();
  if (job_.elastic.store_proxy)
    proxy();
  else if (assignment.group_rank == 0)
    serve();
  else
    look_for_first_node();
}

void ElasticRendezvous::on_waiting(const control::Waiting& waiting) {
  outside_ = waiting.outside;
  reach_.reset();
  seat_->welcomed();
  if (!joined_) return;  // a gathering begins while workers here are still being stopped
  // The others have begun: there is nothing to tell any more.
  if (!job_.unfit.empty() && waiting.outside && !holds_job()) return finish_join(FailureNotice{});
  if (waiting.outside) {
    say(fmt::format("rendezvous: this node is outside the world: {}", waiting.text), true);
    check_reach(waiting);
  } else {
    // By the job's time-out, which need not be the one that this agent was given.
    say(fmt::format("rendezvous: {}", waiting.text), false,
        waiting.rest.count() > 0 ? SteadyClock::now() + std::min(waiting.rest, kLongestRest)
                                 : Instant::max());
  }
}

void ElasticRendezvous::on_generation_over(const control::GenerationOver& over) {
  if (!joined_) return end(outcome_of(over));
  // Before the workers were started.
  race_.reset();
  log_.warning(fmt::format("{}; waiting for the next generation", outcome_of(over).text));
  if (assigned_)
    next_generation();
  else
    client_->ready(over.generation, port_.port);  // of a world it had not heard of yet
}

void ElasticRendezvous::on_closed(const control::Closed& closed) {
  race_.reset();
  reach_.reset();
  AttemptOutcome outcome = outcome_of(closed);
  auto* notice = std::get_if<FailureNotice>(&outcome);
  if (notice != nullptr && stopped_here_ && assigned_) notice->node_rank = assigned_->group_rank;
  if (!joined_) return end(outcome);
  finish_join(final_notice(std::move(outcome)));
}

void ElasticRendezvous::on_lost(const Error& error) {
  race_.reset();
  reach_.reset();
  FailureNotice notice = outcome_of(error, assigned_.has_value(), seat_->title(), seat_->busy());
  if (joined_) return finish_join(std::move(notice));
  end(std::move(notice));
}

// Handing over to the agent.

void ElasticRendezvous::finish_join(Membership membership) {
  hush();
  if (auto* notice = std::get_if<FailureNotice>(&membership);
      notice != nullptr && !job_.unfit.empty() && !holds_job()) {
    notice->node_rank = -1;
    notice->exit_code = kExitPreflight;
  }
  if (const auto call = std::exchange(joined_, {})) call(std::move(membership));
}

void ElasticRendezvous::fail_join(int exit_code, std::string text) {
  FailureNotice notice;
  notice.node_rank = -1;
  notice.host = job_.host;
  notice.exit_code = exit_code;
  notice.text = std::move(text);
  // Between two generations the others count on this node.
  if (client_) withdraw(notice);
  finish_join(std::move(notice));
}

void ElasticRendezvous::watch(int, OutcomeKnown known) {
  known_ = std::move(known);
  if (!outcome_) return;
  asio::post(io_, [this, alive = alive_] {
    if (*alive && outcome_) end(*std::exchange(outcome_, {}));
  });
}

void ElasticRendezvous::end(const AttemptOutcome& outcome) {
  hang_heard_ = {};
  safe_point_passed_ = {};
  if (const auto call = std::exchange(known_, {}))
    call(outcome);
  else
    outcome_ = outcome;
}

void ElasticRendezvous::announce(int, const FailureNotice& notice) {
  if (notice.rank >= 0)
    return client_->worker_failed({assigned_->generation, notice.rank, notice.exit_code, notice.restart,
                                   notice.machine_at_fault, notice.text, notice.reached});
  // Asked to stop, not failed.
  if (can_be_spared()) {
    good_bye(notice.text, kShortGoodBye);
    outcome_ = AttemptOutcome(notice);
    return watch(0, std::exchange(known_, {}));
  }
  stop_or_leave(notice);
}

void ElasticRendezvous::succeeded(int) {
  client_->finished(assigned_->generation);
}

void ElasticRendezvous::safe_point(std::function<void()> passed) {
  if (!linked_) return passed();  // they cannot be asked, and are not waited for
  safe_point_passed_ = std::move(passed);
  client_->safe_point(assigned_->generation);
}

// Parting.

// The coordinator is here, and ends with this agent.
bool ElasticRendezvous::holds_job() const {
  return seat_->taken() && !seat_->passes_on();
}

// Whether the others go on if this node says good-bye. Without a world yet they wait for another one.
bool ElasticRendezvous::can_be_spared() const {
  if (holds_job()) return false;
  const membership::Settings& rules = job_.elastic.rules;
  return !assigned_ || outside_ ||
         (rules.min_nodes < rules.max_nodes && assigned_->group_world_size > rules.min_nodes);
}

void ElasticRendezvous::decline(int, const FailureNotice& notice) {
  joined_ = {};
  race_.reset();
  reach_.reset();
  hush();
  if (client_) withdraw(notice);
}

// The coordinator knows whether a spare is there to take this node's place.
void ElasticRendezvous::stop_or_leave(const FailureNotice& notice) {
  stopped_here_ = true;
  client_->stop_job(notice.text, notice.exit_code, !seat_->taken() || seat_->passes_on());
}

// From a generation that has not begun here.
void ElasticRendezvous::withdraw(const FailureNotice& notice) {
  if (can_be_spared()) return good_bye(notice.text, kShortGoodBye);
  stop_or_leave(notice);
}

void ElasticRendezvous::good_bye(const std::string& reason, Millis patience) {
  if (std::exchange(leaving_, true)) return;
  const auto left = [this, alive = alive_] {
    if (!*alive) return;
    left_ = true;
    if (const auto call = std::exchange(on_left_, {})) call();
  };
  if (client_)
    client_->leave(reason, patience, left);
  else
    left();
}

void ElasticRendezvous::leave(Millis patience, std::function<void()> left) {
  hush();
  on_left_ = [this, patience, left = std::move(left)] { seat_->see_off(patience, left); };
  good_bye("it is done", patience);
  if (!left_) return;
  if (const auto call = std::exchange(on_left_, {})) call();
}

// Words about waiting.

void ElasticRendezvous::say(std::string text, bool at_once, Instant gives_up) {
  unsaid_ = {std::move(text), gives_up};
  if (!patient_ || at_once) speak();
}

void ElasticRendezvous::speak() {
  const auto [text, gives_up] = std::exchange(unsaid_, {});
  if (text.empty()) return;
  if (gives_up == Instant::max()) return log_.warning(text);
  const auto left = std::chrono::round<std::chrono::seconds>(time_left(gives_up, SteadyClock::now()));
  log_.warning(fmt::format("{}; giving up in {} s", text, left.count()));
}

void ElasticRendezvous::hush() {
  patience_.cancel();
  unsaid_ = {};
}

}  // namespace muster::launcher
