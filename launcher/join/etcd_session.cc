// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/etcd_session.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "launcher/join/etcd_lease.h"
#include "launcher/join/etcd_patience.h"
#include "launcher/join/etcd_state_writer.h"
#include "rendezvous/base/backoff.h"
#include "rendezvous/etcd/etcd_client.h"

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

}  // namespace

class EtcdSession::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, const Job& job, const NodeId& node, etcd::Place self, Events events,
       const Log& log)
      : io_(io),
        settings_(*job.elastic.etcd),
        node_(node),
        self_(std::move(self)),
        events_(std::move(events)),
        log_(log),
        keys_(settings_.prefix, job.run_id),
        client_(io, client_options(settings_)),
        patience_(io, client_.title(), {job.elastic.connect_timeout, job.elastic.reconnect_for}, log,
                  [this](const Error& error) { give_up(error); }),
        state_(std::make_shared<EtcdStateWriter>(io, client_, keys_, writer_callbacks())),
        lease_(std::make_shared<EtcdLease>(io, client_, settings_.lease_ttl_seconds, lease_callbacks())),
        pause_(io),
        absence_(io),
        farewell_(io) {}

  void start() { spawn(run()); }

  void close() {
    over_ = true;
    events_ = {};
    left_ = {};
    patience_.stop();
    lease_->close();
    state_->close();
    client_.close();
    for (auto* timer : {&pause_, &absence_, &farewell_}) timer->cancel();
  }

  void write(const std::optional<JobRecord>& state, std::function<void()> written) {
    if (term_ && !over_) spawn(state_->write(state, std::move(written)));
  }

  void welcomed() {
    if (std::exchange(self_.has_joined, true) || over_) return;
    entered_ = false;
    refresh();
  }

  void leave(Millis patience, std::function<void()> left) {
    leaving_ = true;
    events_ = {};
    patience_.stop();
    left_ = std::move(left);
    farewell_.expires_after(patience);
    farewell_.async_wait([self = shared_from_this()](const auto& error) {
      if (!error) self->has_left();
    });
    spawn(give_back());
  }

 private:
  EtcdStateWriter::Callbacks writer_callbacks() {
    EtcdStateWriter::Callbacks out;
    out.overtaken = [this] {
      depose("another agent has been elected");
      refresh();
    };
    out.failed = [this](const Error& error) { patience_.failed(error); };
    out.hopeless = [this](const Error& error) { give_up(error); };
    return out;
  }

  EtcdLease::Callbacks lease_callbacks() {
    EtcdLease::Callbacks out;
    out.ended = [this] {
      log_.warning("etcd has ended this agent's lease; it asks for another");
      lose_lease();
      refresh();
    };
    // Whatever etcd may say later: from now on another agent can have been elected.
    out.doubtful = [this] { depose("etcd has not renewed its lease in time"); };
    out.trusted = [this] { refresh(); };
    out.renewed = [this] {
      patience_.answered();
      spawn(state_->keep_alive());
    };
    out.failed = [this](const Error& error) { patience_.failed(error); };
    return out;
  }

  void lose_lease() {
    lease_->forget();
    entered_ = false;
    depose("its lease in etcd is over");
  }

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
        patience_.answered();
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
      patience_.failed(error);
      if (over_ || stale_) continue;
      pause_.expires_after(backoff.next());
      co_await pause_.async_wait(kTuple);
    }
  }

  // The revision that was seen.
  asio::awaitable<Result<etcd::Revision>> look() {
    if (lease_->id() == 0) {
      const auto granted = co_await lease_->grant();
      if (!granted) co_return fail(granted.error());
      if (over_ || leaving_) co_return 0;
      entered_ = false;
      spawn(lease_->keep());
    }
    etcd::Txn txn;
    if (!entered_) txn.then.push_back(etcd::put(keys_.node(node_), etcd::encode(self_), lease_->id()));
    txn.then.push_back(etcd::get(keys_.coordinator));
    if (term_) {
      txn.then.push_back(etcd::get(keys_.nodes, keys_.nodes_end));
      txn.then.push_back(etcd::get(keys_.state));
    }
    entered_ = true;  // unless it fails, or welcomed() comes meanwhile
    const auto seen = co_await client_.txn(std::move(txn));
    if (!seen) {
      entered_ = false;
      co_return fail(seen.error());
    }
    if (over_ || leaving_ || !lease_->trusted()) co_return seen->revision;
    const auto coordinator = holder(*seen);
    switch (etcd::part_of(coordinator, lease_->id(), term_)) {
      case Part::kCampaign:
      case Part::kServe: {
        const auto outcome = co_await campaign(coordinator ? coordinator->create_revision : 0);
        co_return outcome;
      }
      case Part::kFollow:
        follow(*coordinator);
        break;
      case Part::kStay:
        if (seen->found.size() > 1) attendance_.saw(keys_, seen->found[1], SteadyClock::now());
        if (seen->found.size() > 2 && seen->found[2].empty()) spawn(state_->restore());
        arm_absences();
        break;
    }
    co_return seen->revision;
  }

  // `former`: the term of this agent's lease in which it does not serve; 0: none.
  asio::awaitable<Result<etcd::Revision>> campaign(etcd::Revision former) {
    depose("its key in etcd is gone");
    const auto open = events_.open;
    const auto place = open();
    if (!place) {
      give_up(place.error());
      co_return fail(place.error());
    }
    etcd::Txn txn;
    txn.fence = {keys_.coordinator, former};
    txn.then = {etcd::put(keys_.coordinator, etcd::encode(*place), lease_->id()), etcd::get(keys_.state),
                etcd::get(keys_.nodes, keys_.nodes_end)};
    txn.otherwise = {etcd::get(keys_.coordinator)};
    const auto answer = co_await client_.txn(std::move(txn));
    if (!answer) co_return fail(answer.error());
    // In doubt: etcd has it still, or another agent is elected meanwhile.
    if (over_ || leaving_ || !lease_->trusted()) co_return answer->revision;
    if (!answer->succeeded) {
      const auto winner = holder(*answer);
      // Its own: an answer to an earlier try was lost.
      if (!winner || winner->lease == lease_->id())
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
    auto inheritance = etcd::inherit(state, keys_, nodes);
    if (!inheritance) return give_up(inheritance.error());
    term_ = term;
    state_->begin(term);
    const Instant now = SteadyClock::now();
    attendance_ = etcd::Attendance(std::chrono::seconds(settings_.lease_ttl_seconds));
    attendance_.saw(keys_, nodes, now);
    for (const NodeId& id : inheritance->absent) attendance_.await(id, now + kSettleTime);
    arm_absences();
    if (const auto call = events_.elected) call(*std::move(inheritance));
  }

  static std::optional<etcd::KeyValue> holder(const etcd::TxnAnswer& answer) {
    if (answer.found.empty() || answer.found[0].empty()) return std::nullopt;
    return answer.found[0][0];
  }

  void follow(const etcd::KeyValue& coordinator) {
    depose("another agent runs it");
    const auto place = etcd::place_of(coordinator);
    if (!place) return give_up(place.error());
    if (const auto call = events_.follow) call(*place);
  }

  void depose(const std::string& why) {
    if (!std::exchange(term_, std::nullopt)) return;
    state_->end();
    absence_.cancel();
    if (const auto call = events_.deposed) call(why);
  }

  net::EtcdClient::Watch watch_from(etcd::Revision revision) {
    net::EtcdClient::Watch out;
    out.key = keys_.coordinator;
    if (term_) out.end = keys_.state + '\0';  // "coordinator" < "nodes/..." < "state"
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
      if (event.entry.key == keys_.state) {
        if (event.deleted) spawn(state_->restore());
        continue;
      }
      attendance_.heard(keys_, event, SteadyClock::now());
    }
    arm_absences();
    return true;
  }

  void arm_absences() {
    absence_.expires_at(attendance_.next());
    if (!term_ || attendance_.next() == Instant::max()) return;
    absence_.async_wait([weak = weak_from_this()](const auto& error) {
      const auto self = weak.lock();
      if (error || !self || !self->term_) return;
      for (const NodeId& id : self->attendance_.take_lost(SteadyClock::now()))
        if (const auto call = self->events_.absent) call(id);
      self->arm_absences();
    });
  }

  void refresh() {
    stale_ = true;
    client_.interrupt_watch();
    if (!leaving_) pause_.cancel();
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
    bool idle = false;
    state_->when_idle([&idle, self] {
      idle = true;
      self->pause_.cancel();
    });
    while (!idle && !over_) {
      pause_.expires_at(Instant::max());
      co_await pause_.async_wait(kTuple);
    }
    if (!over_ && lease_->id() != 0) {
      const auto revoked = co_await client_.revoke(lease_->id());
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
  NodeId node_;
  etcd::Place self_;
  Events events_;
  const Log& log_;
  etcd::JobKeys keys_;
  net::EtcdClient client_;
  EtcdPatience patience_;
  std::shared_ptr<EtcdStateWriter> state_;
  std::shared_ptr<EtcdLease> lease_;
  asio::steady_timer pause_;  // of run(), and then of give_back()
  asio::steady_timer absence_;
  asio::steady_timer farewell_;
  bool entered_ = false;                // the node's key is as it should be
  std::optional<etcd::Revision> term_;  // while this agent runs the coordinator
  etcd::Attendance attendance_{Millis(0)};
  bool stale_ = false;  // what was seen is not what is
  bool told_ = false;   // the watch has spoken
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
