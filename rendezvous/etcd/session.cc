// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/session.h"

#include <utility>

#include <fmt/format.h>

namespace muster::etcd {
namespace {

using membership::NodeId;

constexpr Backoff::Options kBackoff{.first = Millis(100), .max = Millis(1000), .factor = 1.6, .jitter = 0.5};
// Members whose lease was over before this agent was elected: those that are here connect meanwhile, and then
// are told why their generation ends.
constexpr Millis kRejoinTime{2000};

const Error kLeftOut{ErrorCode::kProtocol, "etcd has left out answers"};

}  // namespace

Session::Session(boost::asio::io_context& loop, const Options& options, const NodeId& node, Events events,
                 const Log& log)
    : loop_(loop),
      options_(options),
      node_(node),
      self_(options.self),
      events_(std::move(events)),
      log_(log),
      keys_(options_.etcd.prefix, options_.job),
      members_(member_list(options_.etcd)),
      client_(loop, options_.etcd),
      renewal_backoff_(kBackoff, node_.low),
      renewal_(loop),
      lease_end_(loop),
      backoff_(kBackoff, node_.low),
      pause_(loop),
      absence_(loop),
      silence_(loop) {}

Session::~Session() {
  if (state_) state_->close();
}

// Looks, acts, and watches for changes; again whenever something has changed or broken.

void Session::look() {
  stale_ = true;
  if (over_ || looking_) return;
  looking_ = true;
  stale_ = false;
  pause_.cancel();
  client_.stop_watch();
  if (lease_ != 0) return read();
  const Instant asked = SteadyClock::now();
  client_.ask(grant(options_.etcd.lease_ttl_seconds),
              lifetime_.guard([this, asked](const Result<Lease>& granted) {
                if (!granted) return looked(fail(granted.error()));
                on_answer();
                lease_ = granted->id;
                lease_doubtful_ = false;
                entered_ = false;
                lease_clock_ = {asked, granted->ttl};
                wait_lease(lease_clock_.renew_at());
                read();
              }));
}

void Session::read() {
  std::vector<Operation> operations;
  if (!entered_) operations.push_back(put(keys_.node(node_), encode(self_), lease_));
  operations.push_back(get(keys_.coordinator));
  if (term_) {
    operations.push_back(get(keys_.nodes, keys_.nodes_end));
    operations.push_back(get(keys_.state));
  }
  entered_ = true;  // unless it fails, or set_joined() comes meanwhile
  client_.ask(commit(operations), lifetime_.guard([this](const Result<TxnResponse>& found) {
    if (found) return on_read(*found);
    entered_ = false;
    looked(fail(found.error()));
  }));
}

void Session::on_read(const TxnResponse& found) {
  // While the lease is in doubt etcd may have it still, or another agent is elected meanwhile.
  if (over_ || !lease_trusted()) return looked(found.revision);
  if (found.found.size() < (term_ ? 3U : 1U)) return looked(fail(kLeftOut));
  std::optional<KeyValue> coordinator;
  if (!found.found[0].empty()) coordinator = found.found[0][0];
  switch (role_of(coordinator, lease_, term_)) {
    case Role::kCampaign:
      return campaign(coordinator ? coordinator->revision : 0);
    case Role::kFollow:
      follow(*coordinator);
      break;
    case Role::kStay:
      presence_.set(keys_, found.found[1], SteadyClock::now());
      if (found.found[2].empty()) state_->rewrite();
      wait_absences();
      break;
  }
  looked(found.revision);
}

// `former`: the term of this agent's lease in which it does not serve; 0: none.
void Session::campaign(Revision former) {
  depose("its key in etcd is gone");
  const auto endpoint = events_.listen();
  if (!endpoint) return end(endpoint.error());
  const auto call = commit({put(keys_.coordinator, encode(*endpoint), lease_), get(keys_.state),
                            get(keys_.nodes, keys_.nodes_end)},
                           {{keys_.coordinator, former}});
  client_.ask(call, lifetime_.guard([this](const Result<TxnResponse>& response) {
    if (!response) return looked(fail(response.error()));
    on_campaign(*response);
  }));
}

void Session::on_campaign(const TxnResponse& response) {
  if (over_ || !lease_trusted()) return looked(response.revision);
  if (!response.succeeded)
    stale_ = true;  // another agent was first, or an answer to an earlier try was lost
  else if (response.found.size() != 2)
    return looked(fail(kLeftOut));
  else
    start_term(response.revision, response.found[0], response.found[1]);
  looked(response.revision);
}

void Session::looked(const Result<Revision>& revision) {
  looking_ = false;
  if (over_) return;
  if (!revision) {
    if (revision.error().code == ErrorCode::kNotFound) lose_lease();
    on_failure(revision.error());
    return stale_ ? look() : look_later();
  }
  on_answer();
  if (stale_) return look();
  watch(*revision + 1);
}

void Session::look_later() {
  if (!over_) lifetime_.call_at(pause_, SteadyClock::now() + backoff_.next(), [this] { look(); });
}

void Session::watch(Revision from) {
  Client::Watch watch;
  watch.key = keys_.coordinator;
  if (term_) watch.end = keys_.state + '\0';  // "coordinator" < "nodes/..." < "state"
  watch.from = from;
  watch.on_update = lifetime_.guard([this](const WatchUpdate& update) { on_update(update); });
  watch.on_end = lifetime_.guard([this](const Error& error) {
    on_failure(error);
    look_later();
  });
  client_.watch(std::move(watch));
}

void Session::on_update(const WatchUpdate& update) {
  backoff_ = Backoff(kBackoff, node_.low);
  for (const auto& event : update.events) {
    if (event.entry.key == keys_.coordinator) return look();
    if (event.entry.key == keys_.state && event.deleted && state_) state_->rewrite();
    presence_.on_event(keys_, event, SteadyClock::now());
  }
  wait_absences();
}

// This agent's term.

void Session::start_term(Revision term, const std::vector<KeyValue>& state,
                         const std::vector<KeyValue>& nodes) {
  const auto recovered = recover(state, keys_, nodes);
  if (!recovered) return end(recovered.error());
  JobStateLog::Events events;
  events.term_over = [this] {
    depose("another agent has been elected");
    look();
  };
  events.failed = [this](const Error& error) {
    // etcd's limits, or that it asks who writes, do not change by themselves.
    const bool hopeless = error.code == ErrorCode::kExhausted || error.code == ErrorCode::kMismatch;
    hopeless ? end(error) : on_failure(error);
  };
  term_ = term;
  state_ =
      std::make_shared<JobStateLog>(loop_, client_, keys_, term, state.empty() ? 0 : state.front().revision,
                                    options_.job, recovered->record, std::move(events));
  const Instant now = SteadyClock::now();
  presence_ = Presence(std::chrono::seconds(options_.etcd.lease_ttl_seconds));
  presence_.set(keys_, nodes, now);
  for (const NodeId& id : recovered->absent) presence_.expect(id, now + kRejoinTime);
  wait_absences();
  events_.elected(*recovered, state_);
  if (state_) state_->rewrite();  // with a lease of this term
}

void Session::depose(const std::string& why) {
  if (!std::exchange(term_, std::nullopt)) return;
  std::exchange(state_, {})->close();
  absence_.cancel();
  if (events_.deposed) events_.deposed(why);
}

void Session::follow(const KeyValue& coordinator) {
  depose("another agent runs it");
  const auto endpoint = coordinator_endpoint(coordinator);
  if (!endpoint) return end(endpoint.error());
  events_.follow(*endpoint);
}

void Session::wait_absences() {
  if (!term_) return;
  lifetime_.call_at(absence_, presence_.next_deadline(), [this] {
    if (!term_ || over_) return;
    for (const NodeId& id : presence_.take_absent(SteadyClock::now())) events_.absent(id);
    wait_absences();
  });
}

void Session::set_joined() {
  if (std::exchange(self_.has_joined, true) || over_) return;
  entered_ = false;
  look();
}

// The lease: renewed each third of its time.

void Session::wait_lease(Instant renew_at) {
  lifetime_.call_at(renewal_, renew_at, [this] { renew(); });
  lifetime_.call_at(lease_end_, lease_clock_.over_at(), [this] {
    // The lease may have been renewed since the timer fired.
    if (lease_ == 0 || SteadyClock::now() < lease_clock_.over_at()) return;
    // Whatever etcd may say later: from now on another agent can have been elected.
    lease_doubtful_ = true;
    depose("etcd has not renewed its lease in time");
  });
}

void Session::renew() {
  if (lease_ == 0) return;
  const Instant asked = SteadyClock::now();
  client_.ask(keep_alive(lease_), lifetime_.guard([this, asked, id = lease_](const Result<Millis>& left) {
    if (lease_ != id) return;
    if (!left) {
      on_failure(left.error());
      return wait_lease(SteadyClock::now() + renewal_backoff_.next());
    }
    if (*left == Millis(0)) {
      log_.warning("etcd has ended this agent's lease; it asks for another");
      lose_lease();
      return look();
    }
    lease_clock_ = {asked, *left};
    renewal_backoff_ = Backoff(kBackoff, node_.low);
    wait_lease(lease_clock_.renew_at());
    on_answer();
    if (state_) state_->keep_alive();
    if (std::exchange(lease_doubtful_, false)) look();
  }));
}

void Session::lose_lease() {
  lease_ = 0;
  renewal_.cancel();
  lease_end_.cancel();
  entered_ = false;
  depose("its lease in etcd is over");
}

// An etcd that does not answer: nothing is logged about a connection that ends and comes back, one line about
// an etcd that stays away, one when it is back.

void Session::on_answer() {
  ever_answered_ = true;
  if (over_ || !std::exchange(silent_since_, std::nullopt)) return;
  silence_.cancel();
  if (std::exchange(silence_logged_, false)) log_.warning(fmt::format("etcd at {} answers again", members_));
}

void Session::on_failure(const Error& error) {
  if (over_) return;
  // A server that is not etcd stays so; but one that was an etcd may be being replaced.
  if (!ever_answered_ && error.code != ErrorCode::kPeerGone && error.code != ErrorCode::kTimeout) {
    const bool unknown = error.code == ErrorCode::kProtocol || error.code == ErrorCode::kExhausted;
    return end({ErrorCode::kMismatch,
                fmt::format("--rdzv-backend=etcd --rdzv-endpoint={}: {}{}", members_, error.message,
                            unknown ? "; is this the client port of an etcd of 3.4 or later?" : "")});
  }
  last_error_ = error.message;
  const auto timeout = ever_answered_ ? options_.reconnect_timeout : options_.connect_timeout;
  if (silent_since_) {
    if (!std::exchange(silence_logged_, true))
      log_.warning(fmt::format("etcd at {} does not answer: {}; trying for {:.0f} s", members_, error.message,
                               std::chrono::duration<double>(timeout).count()));
    return;
  }
  silent_since_ = SteadyClock::now();
  lifetime_.call_at(silence_, *silent_since_ + timeout, [this, timeout] {
    // etcd may have answered since the timer fired.
    if (over_ || !silent_since_ || SteadyClock::now() < silence_.expiry()) return;
    end({ErrorCode::kTimeout,
         fmt::format("etcd at {}: {} (tried for {:.1f} s); is it running, and reachable from here?", members_,
                     last_error_, std::chrono::duration<double>(timeout).count())});
  });
}

void Session::end(const Error& error) {
  if (std::exchange(over_, true)) return;
  depose("etcd is lost");
  const auto lost = events_.lost;
  finish_leaving();
  lost(error);
}

void Session::leave(Millis timeout, std::function<void()> left) {
  const bool was_over = std::exchange(over_, true);
  events_ = {};
  left_ = std::move(left);
  if (was_over) return finish_leaving();
  client_.stop_watch();
  pause_.cancel();
  absence_.cancel();
  lifetime_.call_at(silence_, SteadyClock::now() + timeout, [this] { finish_leaving(); });
  if (!state_) return give_lease_back();
  state_->when_idle(lifetime_.guard([this] { give_lease_back(); }));
}

void Session::give_lease_back() {
  if (lease_ == 0) return finish_leaving();
  client_.ask(revoke(lease_), lifetime_.guard([this](const Result<void>& revoked) {
    if (!revoked) log_.info(revoked.error().message);
    finish_leaving();
  }));
}

void Session::finish_leaving() {
  lease_ = 0;
  client_.stop_watch();
  for (auto* timer : {&renewal_, &lease_end_, &pause_, &absence_, &silence_}) timer->cancel();
  if (const auto call = std::exchange(left_, {})) call();
}

}  // namespace muster::etcd
