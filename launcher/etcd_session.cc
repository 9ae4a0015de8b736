// SPDX-License-Identifier: Apache-2.0
#include "launcher/etcd_session.h"

#include <exception>
#include <set>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "rendezvous/base/backoff.h"
#include "rendezvous/net/etcd_client.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
using etcd::Part;
using membership::NodeId;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr Backoff::Options kBackoff{.first = Millis(100), .max = Millis(2000), .factor = 1.6, .jitter = 0.5};
// Members whose lease was over before this agent was elected: those that are here connect meanwhile, and then
// are told why their generation ends.
constexpr Millis kSettleTime{2000};
// What an ended job leaves in etcd where nobody could clear it away.
constexpr std::int64_t kStateTtlSeconds = 3600;
constexpr std::chrono::minutes kStateRenewal{10};

net::EtcdClientOptions client_options(const EtcdSettings& settings) {
  net::EtcdClientOptions out;
  for (const auto& member : settings.members) out.members.push_back({member.host, member.port});
  out.tls = settings.tls;
  // So that a silent member leaves time for another within the lease.
  out.call_timeout = std::min(out.call_timeout, Millis(settings.lease_ttl_seconds * 1000 / 4));
  return out;
}

}  // namespace

class EtcdSession::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, const Job& job, const NodeId& node, etcd::Place self, Events events,
       const Log& log)
      : io_(io),
        settings_(*job.elastic.etcd),
        patience_for_(job.elastic.connect_timeout),
        reconnect_for_(job.elastic.reconnect_for),
        node_(node),
        self_(std::move(self)),
        events_(std::move(events)),
        log_(log),
        keys_(settings_.prefix, job.run_id),
        client_(io, client_options(settings_)),
        pause_(io),
        renewal_(io),
        lease_end_(io),
        absence_(io),
        patience_(io),
        write_pause_(io),
        farewell_(io) {}

  void start() { spawn(run()); }

  void close() {
    over_ = true;
    events_ = {};
    left_ = {};
    client_.close();
    for (auto* timer : {&pause_, &renewal_, &lease_end_, &absence_, &patience_, &write_pause_, &farewell_})
      timer->cancel();
  }

  void write(const std::optional<JobRecord>& state, std::function<void()> written) {
    if (term_ && !over_) spawn(write_state(*term_, state, std::move(written)));
  }

  void welcomed() {
    if (std::exchange(self_.has_joined, true) || over_) return;
    entered_ = false;
    refresh();
  }

  void leave(Millis patience, std::function<void()> left) {
    leaving_ = true;
    events_ = {};
    left_ = std::move(left);
    farewell_.expires_after(patience);
    farewell_.async_wait([self = shared_from_this()](const auto& error) {
      if (!error) self->has_left();
    });
    spawn(give_back());
  }

 private:
  void spawn(asio::awaitable<void> task) {
    asio::co_spawn(io_, std::move(task), [self = shared_from_this()](const std::exception_ptr& exception) {
      if (!exception) return;
      try {
        std::rethrow_exception(exception);
      } catch (const std::exception& error) {
        self->give_up({ErrorCode::kIo, fmt::format("etcd: {}", error.what())});
      }
    });
  }

  // Looks, acts, and watches for changes; again whenever something has changed or broken.
  asio::awaitable<void> run() {
    const auto self = shared_from_this();
    Backoff backoff(kBackoff, node_.low);
    while (!over_ && !leaving_) {
      stale_ = false;
      const auto seen = co_await look();
      if (over_ || leaving_) co_return;
      Error error;
      if (seen) {
        reached();
        if (stale_) continue;
        told_ = false;
        error = co_await client_.watch(watch_from(*seen + 1));
        if (over_ || leaving_) co_return;
        if (told_) backoff = Backoff(kBackoff, node_.low);
        if (error.code == ErrorCode::kCancelled) continue;
      } else {
        error = seen.error();
        // Another lease then.
        if (error.code == ErrorCode::kNotFound) lose_lease();
      }
      trouble(error);
      if (over_ || stale_) continue;
      pause_.expires_after(backoff.next());
      co_await pause_.async_wait(kTuple);
    }
  }

  // The revision that was seen.
  asio::awaitable<Result<etcd::Revision>> look() {
    if (lease_ == 0) {
      const Instant asked = SteadyClock::now();
      const auto granted = co_await client_.grant(settings_.lease_ttl_seconds);
      if (!granted) co_return fail(granted.error());
      lease_ = granted->id;
      entered_ = false;
      clock_ = etcd::LeaseClock(asked, granted->ttl_seconds);
      arm_lease_end();
      spawn(keep_alive(lease_));
    }
    etcd::Txn txn;
    if (!entered_) txn.then.push_back(etcd::put(keys_.node(node_), etcd::encode(self_), lease_));
    txn.then.push_back(etcd::get(keys_.coordinator));
    if (term_) txn.then.push_back(etcd::get(keys_.nodes, keys_.nodes_end));
    entered_ = true;  // unless it fails, or welcomed() comes meanwhile
    const auto seen = co_await client_.txn(std::move(txn));
    if (!seen) {
      entered_ = false;
      co_return fail(seen.error());
    }
    if (over_ || leaving_ || lease_ == 0) co_return seen->revision;
    const auto coordinator = holder(*seen);
    switch (etcd::part_of(coordinator, lease_, term_)) {
      case Part::kCampaign:
      case Part::kServe: {
        const auto outcome = co_await campaign(coordinator ? coordinator->create_revision : 0);
        co_return outcome;
      }
      case Part::kFollow:
        follow(*coordinator);
        break;
      case Part::kStay:
        if (seen->found.size() > 1) count_nodes(seen->found[1]);
        break;
    }
    co_return seen->revision;
  }

  // `former`: the term of this agent's lease in which it does not serve; 0: none.
  asio::awaitable<Result<etcd::Revision>> campaign(etcd::Revision former) {
    depose("its key in etcd is gone");
    const auto place = events_.open();
    if (!place) {
      give_up(place.error());
      co_return fail(place.error());
    }
    etcd::Txn txn;
    txn.fence = {keys_.coordinator, former};
    txn.then = {etcd::put(keys_.coordinator, etcd::encode(*place), lease_), etcd::get(keys_.state),
                etcd::get(keys_.nodes, keys_.nodes_end)};
    txn.otherwise = {etcd::get(keys_.coordinator)};
    const auto answer = co_await client_.txn(std::move(txn));
    if (!answer) co_return fail(answer.error());
    if (over_ || leaving_ || lease_ == 0) co_return answer->revision;
    if (!answer->succeeded) {
      const auto winner = holder(*answer);
      // Its own: an answer to an earlier try was lost.
      if (!winner || winner->lease == lease_)
        refresh();
      else
        follow(*winner);
      co_return answer->revision;
    }
    if (answer->found.size() != 2) co_return fail(ErrorCode::kProtocol, "etcd has left out answers");
    take_office(former != 0 ? former : answer->revision, answer->found[0], answer->found[1]);
    co_return answer->revision;
  }

  void take_office(etcd::Revision term, const std::vector<etcd::KeyValue>& state,
                   const std::vector<etcd::KeyValue>& nodes) {
    std::optional<JobRecord> saved;
    if (!state.empty()) {
      saved = etcd::decode_state(state[0].value);
      if (!saved)
        return give_up({ErrorCode::kCorrupt,
                        fmt::format("what etcd has under {} is no job of this version of muster; use another "
                                    "--rdzv-id, or remove it with etcdctl del",
                                    keys_.state)});
    }
    etcd::Inheritance inheritance = etcd::inherit(std::move(saved), keys_, nodes);
    term_ = term;
    present_.clear();
    absences_.clear();
    count_nodes(nodes);
    for (const NodeId& id : inheritance.absent) absences_.missed(id, SteadyClock::now() + kSettleTime);
    arm_absences();
    // The lease of the former coordinator's state may be over soon.
    state_lease_ = 0;
    events_.elected(std::move(inheritance));
  }

  static std::optional<etcd::KeyValue> holder(const etcd::TxnAnswer& answer) {
    if (answer.found.empty() || answer.found[0].empty()) return std::nullopt;
    return answer.found[0][0];
  }

  void follow(const etcd::KeyValue& coordinator) {
    depose("another agent runs it");
    const auto place = etcd::decode_place(coordinator.value);
    if (place && place->port != 0) return events_.follow(*place);
    give_up(
        {ErrorCode::kCorrupt, fmt::format("what etcd has under {} is no coordinator's place; does something "
                                          "else use these keys? Give another etcd_prefix",
                                          keys_.coordinator)});
  }

  void depose(const std::string& why) {
    if (!std::exchange(term_, std::nullopt)) return;
    absences_.clear();
    absence_.cancel();
    write_pause_.cancel();
    if (const auto call = events_.deposed) call(why);
  }

  // The watch.

  net::EtcdClient::Watch watch_from(etcd::Revision revision) {
    net::EtcdClient::Watch out;
    out.key = keys_.coordinator;
    if (term_) out.end = keys_.nodes_end;  // "coordinator" < "nodes/..." < "state"
    out.from = revision;
    out.probe = std::chrono::seconds(settings_.lease_ttl_seconds);
    out.heard = [weak = weak_from_this()](const etcd::WatchUpdate& update) {
      const auto self = weak.lock();
      return self && self->heard(update);
    };
    return out;
  }

  bool heard(const etcd::WatchUpdate& update) {
    if (over_ || leaving_) return false;
    told_ = true;
    for (const auto& event : update.events) {
      if (event.entry.key == keys_.coordinator) return false;
      const auto id = keys_.node_of(event.entry.key);
      if (!id || !term_) continue;
      if (event.deleted)
        missed(*id);
      else
        is_here(*id);
    }
    arm_absences();
    return true;
  }

  void is_here(const NodeId& id) {
    present_.insert(id);
    absences_.returned(id);
  }

  void missed(const NodeId& id) {
    if (present_.erase(id) > 0)
      absences_.missed(id, SteadyClock::now() + std::chrono::seconds(settings_.lease_ttl_seconds));
  }

  void count_nodes(const std::vector<etcd::KeyValue>& nodes) {
    std::set<NodeId> here;
    for (const auto& entry : nodes)
      if (const auto id = keys_.node_of(entry.key)) here.insert(*id);
    for (const NodeId& id : std::set<NodeId>(present_))
      if (!here.contains(id)) missed(id);
    for (const NodeId& id : here) is_here(id);
    arm_absences();
  }

  void arm_absences() {
    absence_.expires_at(absences_.next());
    if (absences_.next() == Instant::max()) return;
    absence_.async_wait([weak = weak_from_this()](const auto& error) {
      const auto self = weak.lock();
      if (error || !self || !self->term_) return;
      for (const NodeId& id : self->absences_.take_lost(SteadyClock::now()))
        if (const auto call = self->events_.absent) call(id);
      self->arm_absences();
    });
  }

  // The lease.

  asio::awaitable<void> keep_alive(etcd::LeaseId lease) {
    const auto self = shared_from_this();
    Backoff backoff(kBackoff, node_.high);
    Instant next = clock_.renew_at();
    while (true) {
      renewal_.expires_at(next);
      co_await renewal_.async_wait(kTuple);
      if (over_ || lease_ != lease) co_return;
      const Instant asked = SteadyClock::now();
      const auto left = co_await client_.keep_alive(lease);
      if (over_ || lease_ != lease) co_return;
      if (!left) {
        trouble(left.error());
        next = SteadyClock::now() + backoff.next();
        continue;
      }
      if (*left == 0) {
        log_.warning("etcd has ended this agent's lease; it asks for another");
        lose_lease();
        refresh();
        co_return;
      }
      clock_.renewed(asked, *left);
      arm_lease_end();
      reached();
      if (std::exchange(suspended_, false)) refresh();
      backoff = Backoff(kBackoff, node_.high);
      next = clock_.renew_at();
      if (state_lease_ != 0 && asked >= state_renewal_) {
        state_renewal_ = asked + kStateRenewal;
        if (const auto kept = co_await client_.keep_alive(state_lease_); kept && *kept == 0) state_lease_ = 0;
      }
    }
  }

  void lose_lease() {
    lease_ = 0;
    entered_ = false;
    renewal_.cancel();
    depose("its lease in etcd is over");
  }

  // Whatever etcd may say later: from now on another agent can have been elected.
  void arm_lease_end() {
    lease_end_.expires_at(clock_.over_at());
    lease_end_.async_wait([weak = weak_from_this()](const auto& error) {
      const auto self = weak.lock();
      if (error || !self || !self->term_) return;
      self->suspended_ = true;
      self->depose("etcd has not renewed its lease in time");
    });
  }

  // The state.

  asio::awaitable<void> write_state(etcd::Revision term, std::optional<JobRecord> state,
                                    std::function<void()> written) {
    const auto self = shared_from_this();
    ++num_writes_;
    Backoff backoff(kBackoff, node_.low);
    while (!over_ && term_ == term) {
      const auto done = co_await write_once(term, state);
      if (over_ || term_ != term) break;
      if (done && *done) {
        written();
        break;
      }
      if (done) {
        depose("another agent has been elected");
        refresh();
        break;
      }
      if (done.error().code == ErrorCode::kExhausted) {
        give_up(done.error());
        break;
      }
      if (done.error().code == ErrorCode::kNotFound) state_lease_ = 0;
      trouble(done.error());
      write_pause_.expires_after(backoff.next());
      co_await write_pause_.async_wait(kTuple);
    }
    if (--num_writes_ == 0 && leaving_) pause_.cancel();
  }

  // False: the term is over.
  asio::awaitable<Result<bool>> write_once(etcd::Revision term, const std::optional<JobRecord>& state) {
    if (state_lease_ == 0 && state) {
      const auto lease = co_await client_.grant(kStateTtlSeconds);
      if (!lease) co_return fail(lease.error());
      state_lease_ = lease->id;
      state_renewal_ = SteadyClock::now() + kStateRenewal;
    }
    etcd::Txn txn;
    txn.fence = {keys_.coordinator, term};
    if (state)
      txn.then.push_back(etcd::put(keys_.state, etcd::encode_state(*state), state_lease_));
    else
      txn.then.push_back(etcd::erase(keys_.state));
    const auto answer = co_await client_.txn(std::move(txn));
    if (!answer) co_return fail(answer.error());
    co_return answer->succeeded;
  }

  // Trouble and parting.

  void refresh() {
    stale_ = true;
    client_.interrupt_watch();
    if (!leaving_) pause_.cancel();
  }

  void reached() {
    ever_reached_ = true;
    patience_for_ = reconnect_for_;
    if (!std::exchange(troubled_since_, std::nullopt)) return;
    patience_.cancel();
    if (std::exchange(said_, false)) log_.warning(fmt::format("etcd at {} answers again", client_.title()));
  }

  void trouble(const Error& error) {
    if (over_ || leaving_) return;
    if (!ever_reached_ && (error.code == ErrorCode::kMismatch || error.code == ErrorCode::kProtocol))
      return give_up(
          {ErrorCode::kMismatch,
           fmt::format("--rdzv-backend=etcd --rdzv-endpoint={}: {}{}", client_.title(), error.message,
                       error.code == ErrorCode::kProtocol
                           ? "; is this the client port of an etcd of 3.4 or later?"
                           : "")});
    last_error_ = error.message;
    if (troubled_since_) {
      // A connection that ended at a restart is not worth a word; an etcd that does not come back at once is.
      if (!std::exchange(said_, true))
        log_.warning(fmt::format("etcd at {} does not answer: {}; trying for {:.0f} s, what runs goes on",
                                 client_.title(), error.message,
                                 std::chrono::duration<double>(patience_for_).count()));
      return;
    }
    troubled_since_ = SteadyClock::now();
    patience_.expires_after(patience_for_);
    patience_.async_wait([weak = weak_from_this()](const auto& stopped) {
      const auto self = weak.lock();
      if (stopped || !self) return;
      self->give_up(
          {ErrorCode::kTimeout,
           fmt::format("etcd at {}: {} (tried for {:.1f} s); is it running, and reachable from here?",
                       self->client_.title(), self->last_error_,
                       std::chrono::duration<double>(SteadyClock::now() - *self->troubled_since_).count())});
    });
  }

  void give_up(const Error& error) {
    if (over_ || leaving_) return;
    const auto call = events_.lost;
    depose("etcd is lost");
    close();
    if (call) call(error);
  }

  asio::awaitable<void> give_back() {
    const auto self = shared_from_this();
    client_.interrupt_watch();
    while (num_writes_ > 0 && !over_) {
      pause_.expires_at(Instant::max());
      co_await pause_.async_wait(kTuple);
    }
    if (!over_ && lease_ != 0) {
      const auto revoked = co_await client_.revoke(lease_);
      if (!revoked) log_.info(revoked.error().message);
    }
    has_left();
  }

  void has_left() {
    const auto call = std::exchange(left_, {});
    close();
    if (call) call();
  }

  asio::io_context& io_;
  EtcdSettings settings_;
  Millis patience_for_;
  Millis reconnect_for_;
  NodeId node_;
  etcd::Place self_;
  Events events_;
  const Log& log_;
  etcd::JobKeys keys_;
  net::EtcdClient client_;
  asio::steady_timer pause_;      // of run(), and then of give_back()
  asio::steady_timer renewal_;    // of keep_alive()
  asio::steady_timer lease_end_;  // by this agent's clock
  asio::steady_timer absence_;
  asio::steady_timer patience_;  // with an etcd that does not answer
  asio::steady_timer write_pause_;
  asio::steady_timer farewell_;
  etcd::LeaseId lease_ = 0;
  etcd::LeaseClock clock_;
  bool entered_ = false;                // the node's key is as it should be
  std::optional<etcd::Revision> term_;  // while this agent runs the coordinator
  bool suspended_ = false;              // deposed by the clock alone
  std::set<NodeId> present_;            // nodes whose keys were seen in this term
  etcd::Absences absences_;
  etcd::LeaseId state_lease_ = 0;
  Instant state_renewal_{};
  int num_writes_ = 0;
  bool stale_ = false;  // what was seen is not what is
  bool told_ = false;   // the watch has spoken
  bool ever_reached_ = false;
  std::optional<Instant> troubled_since_;
  std::string last_error_;
  bool said_ = false;
  bool leaving_ = false;
  bool over_ = false;
  std::function<void()> left_;
};

EtcdSession::EtcdSession(asio::io_context& io, const Job& job, const NodeId& node, etcd::Place self,
                         Events events, const Log& log)
    : impl_(std::make_shared<Impl>(io, job, node, std::move(self), std::move(events), log)) {}

EtcdSession::~EtcdSession() {
  impl_->close();
}

void EtcdSession::start() {
  impl_->start();
}
void EtcdSession::write(const std::optional<JobRecord>& state, std::function<void()> written) {
  impl_->write(state, std::move(written));
}
void EtcdSession::welcomed() {
  impl_->welcomed();
}
void EtcdSession::leave(Millis patience, std::function<void()> left) {
  impl_->leave(patience, std::move(left));
}

}  // namespace muster::launcher
