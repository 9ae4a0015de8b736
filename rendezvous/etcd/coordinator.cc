// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/coordinator.h"

#include <optional>
#include <utility>
#include <vector>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/agent_client/address_race.h"
#include "rendezvous/base/backoff.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/text.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/election.h"
#include "rendezvous/etcd/state_log.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::etcd {
namespace {

namespace asio = boost::asio;
using membership::NodeId;

constexpr Backoff::Options kWatchBackoff{.first = Millis(100)};
constexpr Backoff::Options kRaceBackoff{.first = Millis(50)};
constexpr std::chrono::seconds kLeaveTimeout{3};  // for an etcd that may be gone
// Members whose lease was over before this agent was elected: those that are here connect meanwhile, and then
// are told why their generation ends.
constexpr Millis kRejoinTime{2000};

// etcd ends leases up to so much later, by looking at them twice a second.
constexpr Millis kLeaseCheck{1000};

const Error kLeftOut{ErrorCode::kProtocol, "etcd has left out answers"};

class Coordinator final : public net::CoordinatorHost {
 public:
  Coordinator(asio::io_context& loop, Options options, const Log& log)
      : loop_(loop),
        options_(std::move(options)),
        log_(log),
        node_(auth::random_node_id()),
        self_(options_.self),
        keys_(options_.etcd.prefix, options_.job),
        members_(member_list(options_.etcd)),
        client_(loop, options_.etcd),
        renewal_backoff_(kWatchBackoff, node_.low),
        renewal_(loop),
        lease_end_(loop),
        backoff_(kWatchBackoff, node_.low),
        pause_(loop),
        silence_(loop),
        absence_(loop),
        race_backoff_(kRaceBackoff, node_.low),
        race_pause_(loop),
        deadline_(SteadyClock::now() + options_.connect_timeout),
        timeout_(loop),
        drain_timeout_(loop) {}
  ~Coordinator() override {
    if (state_) state_->close();
  }

  void start(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    look();
  }

  [[nodiscard]] bool is_hosting() const override { return server_ != nullptr; }
  [[nodiscard]] bool survives_exit() const override { return true; }
  [[nodiscard]] std::string host() const override { return host_; }
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  /// Before it is located: etcd's members.
  [[nodiscard]] std::string title() const override {
    return located_ ? endpoint_text(host_, port_) : members_;
  }
  [[nodiscard]] membership::NodeId node() const override { return node_; }

  void set_joined() override {
    if (std::exchange(self_.has_joined, true) || over_) return;
    entered_ = false;
    look();
  }

  /// A job that goes on is handed over at once.
  void drain(Millis timeout, std::function<void()> done) override {
    callbacks_ = {};
    race_.reset();
    race_pause_.cancel();
    drained_ = std::move(done);
    lifetime_.call_at(drain_timeout_, SteadyClock::now() + timeout, [this] { leave(); });
    leave_if_empty();
  }

 private:
  // Looks, acts, and watches for changes; again whenever something has changed or broken.

  void look() {
    stale_ = true;
    if (over_ || looking_) return;
    looking_ = true;
    stale_ = up_to_date_ = false;
    pause_.cancel();
    client_.stop_watch();
    if (lease_ != 0) return read();
    const Instant asked = SteadyClock::now();
    client_.ask(grant(options_.etcd.lease_ttl_seconds),
                lifetime_.guard([this, asked](const Result<Lease>& granted) {
                  if (!granted) return looked(fail(granted.error()));
                  lease_ = granted->id;
                  lease_doubtful_ = false;
                  entered_ = false;
                  lease_clock_ = {asked, granted->ttl};
                  wait_lease(lease_clock_.renew_at());
                  read();
                }));
  }

  void read() {
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

  void on_read(const TxnResponse& found) {
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
  void campaign(Revision former) {
    depose("its key in etcd is gone");
    if (listener_.fds.empty()) {
      auto opened = options_.listen();
      if (!opened) return lose_etcd(opened.error());
      listener_ = *std::move(opened);
    }
    Endpoint endpoint = options_.self;
    endpoint.port = listener_.port;
    const auto call = commit({put(keys_.coordinator, encode(endpoint), lease_), get(keys_.state),
                              get(keys_.nodes, keys_.nodes_end)},
                             {{keys_.coordinator, former}});
    client_.ask(call, lifetime_.guard([this](const Result<TxnResponse>& response) {
      if (!response) return looked(fail(response.error()));
      on_campaign(*response);
    }));
  }

  void on_campaign(const TxnResponse& response) {
    if (over_ || !lease_trusted()) return looked(response.revision);
    if (!response.succeeded)
      stale_ = true;  // another agent was first, or an answer to an earlier try was lost
    else if (response.found.size() != 2)
      return looked(fail(kLeftOut));
    else if (!waits_for_leases(response))
      start_term(response.revision, response.found[0], response.found[1]);
    looked(response.revision);
  }

  /// Elected is an agent that no coordinator of this job has accepted yet. Where all agents of the job were
  /// killed at once, their leases end one after another, by a third of their time at most: while only some
  /// are over, the job would be one that has lost a node. It is one that nobody runs any more, unless a
  /// member's key is still there later on. Until that is known this agent does not serve: it is elected again
  /// and again.
  [[nodiscard]] bool waits_for_leases(const TxnResponse& response) {
    const auto recovered = recover(response.found[0], keys_, response.found[1]);
    if (self_.has_joined || !recovered || !recovered->doubtful) return false;
    const Instant now = SteadyClock::now();
    const Millis ttl = std::chrono::seconds(options_.etcd.lease_ttl_seconds);
    if (!decided_by_) decided_by_ = now + ttl / 3 + kLeaseCheck;
    if (now >= *decided_by_) return false;
    lifetime_.call_at(pause_, std::min(*decided_by_, now + ttl / 6), [this] { look(); });
    return true;
  }

  void looked(const Result<Revision>& revision) {
    looking_ = false;
    if (over_) return;
    if (!revision) {
      if (revision.error().code == ErrorCode::kNotFound) lose_lease();
      on_failure(revision.error());
      return stale_ ? look() : look_later();
    }
    ever_answered_ = up_to_date_ = true;
    on_answer();
    if (stale_) return look();
    watch(*revision + 1);
  }

  void look_later() {
    if (!over_) lifetime_.call_at(pause_, SteadyClock::now() + backoff_.next(), [this] { look(); });
  }

  void watch(Revision from) {
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

  void on_update(const WatchUpdate& update) {
    backoff_ = Backoff(kWatchBackoff, node_.low);
    for (const auto& event : update.events) {
      if (event.entry.key == keys_.coordinator) return look();
      if (event.entry.key == keys_.state && event.deleted && state_) state_->rewrite();
      presence_.on_event(keys_, event, SteadyClock::now());
    }
    wait_absences();
  }

  // This agent's term.

  void start_term(Revision term, const std::vector<KeyValue>& state, const std::vector<KeyValue>& nodes) {
    const auto recovered = recover(state, keys_, nodes);
    if (!recovered) return lose_etcd(recovered.error());
    JobStateLog::Events events;
    events.term_over = [this] {
      depose("another agent has been elected");
      look();
    };
    events.failed = [this](const Error& error) {
      // The size of a request, or that etcd asks who writes, does not change by itself.
      const bool hopeless = error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kMismatch;
      hopeless ? lose_etcd(error) : on_failure(error);
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
    serve(*recovered);
    if (state_) state_->rewrite();  // with a lease of this term
  }

  void serve(const RecoveredJob& job) {
    race_.reset();
    race_pause_.cancel();
    timeout_.cancel();
    followed_.reset();
    net::RendezvousServerOptions options;
    const std::uint16_t port = listener_.port;
    options.store.listener = std::make_shared<net::Listener>(std::exchange(listener_, {}));
    options.control.secret = options_.secret;
    options.control.heartbeat_interval = options_.heartbeat_interval;
    options.control.state = state_;
    options.control.restart_grace = options_.reconnect_timeout;
    options.control.on_close = [this] { leave_soon(); };
    auto server = net::RendezvousServer::listen(loop_, options, log_);
    if (!server) return end(server.error());
    server_ = *std::move(server);
    if (job.record)
      log_.warning(fmt::format(
          "this agent takes over the coordinator of job {}: generation {}, {} of {} restarts used",
          options_.job, job.record->world.generation, job.record->restarts_used,
          job.record->settings.max_restarts));
    locate(options_.own_address, port);
  }

  void depose(const std::string& why) {
    if (!std::exchange(term_, std::nullopt)) return;
    std::exchange(state_, {})->close();
    absence_.cancel();
    if (!server_) return;
    log_.warning(fmt::format("this agent no longer runs the coordinator of job {}: {}", options_.job, why));
    server_->stop();
    server_.reset();
    leave_soon();
  }

  void wait_absences() {
    if (!term_) return;
    lifetime_.call_at(absence_, presence_.next_deadline(), [this] {
      if (!term_ || over_) return;
      for (const NodeId& id : presence_.take_absent(SteadyClock::now()))
        if (server_) server_->coordinator().evict_node(options_.job, id, "its lease in etcd is over");
      wait_absences();
    });
  }

  // Another agent's.

  void follow(const KeyValue& coordinator) {
    decided_by_.reset();
    depose("another agent runs it");
    const auto endpoint = coordinator_endpoint(coordinator);
    if (!endpoint) return lose_etcd(endpoint.error());
    if (followed_ == *endpoint) return;
    followed_ = *endpoint;
    if (!located_)
      lifetime_.call_at(timeout_, deadline_, [this] {
        if (!followed_ || located_) return;
        end({ErrorCode::kTimeout,
             fmt::format(
                 "the coordinator of job {} on {}, as etcd at {} names it, does not answer: {}; is there "
                 "a firewall between them? --iface and --local-addr choose what a node offers",
                 options_.job, followed_->host, title(), last_error_)});
      });
    race_backoff_ = Backoff(kRaceBackoff, node_.low);
    race();
  }

  void race() {
    net::AddressRace::Options options;
    options.addresses = options_.sort_addresses(followed_->addresses);
    options.port = followed_->port;
    race_ = std::make_unique<net::AddressRace>(
        loop_, std::move(options), [this](const Result<net::AddressRace::Answer>& answer) {
          if (answer) return locate(answer->address, followed_->port);
          last_error_ = answer.error().message;
          log_.info(fmt::format("the coordinator on {} does not answer: {}", followed_->host, last_error_));
          // It may be gone, which etcd knows when its lease is over.
          lifetime_.call_at(race_pause_, SteadyClock::now() + race_backoff_.next(), [this] {
            if (followed_) race();
          });
        });
  }

  void locate(std::string host, std::uint16_t port) {
    host_ = std::move(host);
    port_ = port;
    if (std::exchange(located_, true)) {
      if (const auto call = callbacks_.moved) call();
      return;
    }
    timeout_.cancel();
    if (const auto call = std::exchange(callbacks_.located, {})) call({});
  }

  // The lease: renewed each third of its time.

  void wait_lease(Instant renew_at) {
    lifetime_.call_at(renewal_, renew_at, [this] { renew(); });
    lifetime_.call_at(lease_end_, lease_clock_.over_at(), [this] {
      // The lease may have been renewed since the timer fired.
      if (lease_ == 0 || SteadyClock::now() < lease_clock_.over_at()) return;
      // Whatever etcd may say later: from now on another agent can have been elected.
      lease_doubtful_ = true;
      depose("etcd has not renewed its lease in time");
    });
  }

  void renew() {
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
      renewal_backoff_ = Backoff(kWatchBackoff, node_.low);
      wait_lease(lease_clock_.renew_at());
      // An etcd may grant leases and refuse the rest: one with authentication does.
      if (up_to_date_) on_answer();
      if (state_) state_->keep_alive();
      if (std::exchange(lease_doubtful_, false)) look();
    }));
  }

  void lose_lease() {
    lease_ = 0;
    renewal_.cancel();
    lease_end_.cancel();
    entered_ = false;
    depose("its lease in etcd is over");
  }

  // An etcd that does not answer: nothing is logged about a connection that ends and comes back, one line
  // about an etcd that stays away, one when it is back. One that is full keeps its keys and leases and
  // refuses writes: the job goes on, and what has to be written first waits.

  void on_answer() {
    if (over_) return;
    if (full_ && !(state_ && state_->dirty())) {
      full_ = false;
      log_.warning(fmt::format("etcd at {} takes writes again", members_));
    }
    if (!std::exchange(silent_since_, std::nullopt)) return;
    silence_.cancel();
    if (std::exchange(silence_logged_, false))
      log_.warning(fmt::format("etcd at {} answers again", members_));
  }

  void on_failure(const Error& error) {
    if (over_) return;
    // A server that is not etcd stays so; but one that was an etcd may be being replaced.
    if (!ever_answered_ && error.code != ErrorCode::kPeerGone && error.code != ErrorCode::kTimeout &&
        error.code != ErrorCode::kNotFound) {  // a lease that was over before etcd could take a key
      const bool unknown = error.code == ErrorCode::kProtocol;
      return lose_etcd({ErrorCode::kMismatch,
                        fmt::format("--rdzv-backend=etcd --rdzv-endpoint={}: {}{}", members_, error.message,
                                    unknown ? "; is this the client port, mostly 2379, of an etcd of 3.4 or "
                                              "later, and its gateway not turned off?"
                                            : "")});
    }
    if (error.code == ErrorCode::kExhausted) {
      if (!std::exchange(full_, true))
        log_.warning(
            fmt::format("etcd at {}: {}; until then the workers go on, but no node joins or "
                        "restarts, and the end of the job waits",
                        members_, error.message));
      return;
    }
    last_failure_ = error.message;
    const auto timeout = ever_answered_ ? options_.reconnect_timeout : options_.connect_timeout;
    if (silent_since_) {
      if (!std::exchange(silence_logged_, true))
        log_.warning(fmt::format("etcd at {}: {}; trying again for {:.0f} s", members_, error.message,
                                 std::chrono::duration<double>(timeout).count()));
      return;
    }
    silent_since_ = SteadyClock::now();
    lifetime_.call_at(silence_, *silent_since_ + timeout, [this, timeout] {
      // etcd may have answered since the timer fired.
      if (over_ || !silent_since_ || SteadyClock::now() < silence_.expiry()) return;
      lose_etcd({ErrorCode::kTimeout,
                 fmt::format("etcd at {}: {} (tried for {:.1f} s); is it running, and reachable from here?",
                             members_, last_failure_, std::chrono::duration<double>(timeout).count())});
    });
  }

  void lose_etcd(const Error& error) {
    if (std::exchange(over_, true)) return;
    depose("etcd is lost");
    finish_leaving();
    end(error);
  }

  // From the loop: the events may end with the destructor.
  void end(const Error& error) {
    timeout_.cancel();
    race_.reset();
    race_pause_.cancel();
    callbacks_.moved = {};
    asio::post(loop_, lifetime_.guard([this, error] {
      const auto located = std::exchange(callbacks_.located, {});
      const auto lost = std::exchange(callbacks_.lost, {});
      if (located) return located(fail(error));
      if (lost) lost(error);
    }));
  }

  // The end.

  // Not from within the server or the session, which are about to be stopped.
  void leave_soon() {
    asio::post(loop_, lifetime_.guard([this] { leave_if_empty(); }));
  }

  // Those who have to hear how the job ended are waited for; a job that goes on is the next coordinator's.
  void leave_if_empty() {
    if (!drained_) return;
    if (!server_) return leave();
    const membership::Round* round = server_->coordinator().jobs().find_round(options_.job);
    const bool over = round == nullptr || round->phase == membership::Phase::kClosed;
    if (over && server_->coordinator().stats().num_open > 0) return;
    if (over) state_->remove();
    leave();
  }

  void leave() {
    drain_timeout_.cancel();
    const auto done = std::exchange(drained_, {});
    if (!done) return;
    left_ = [this, done] {
      if (server_) server_->stop();
      done();
    };
    if (std::exchange(over_, true)) return finish_leaving();
    client_.stop_watch();
    for (auto* timer : {&pause_, &absence_, &silence_}) timer->cancel();
    lifetime_.call_at(drain_timeout_, SteadyClock::now() + kLeaveTimeout, [this] { finish_leaving(); });
    if (!state_) return give_lease_back();
    state_->when_idle(lifetime_.guard([this] { give_lease_back(); }));
  }

  void give_lease_back() {
    if (lease_ == 0) return finish_leaving();
    client_.ask(revoke(lease_), lifetime_.guard([this](const Result<void>& revoked) {
      if (!revoked && revoked.error().code != ErrorCode::kNotFound)  // that it is over is meant
        log_.info(fmt::format("the lease in etcd is not given back: {}", revoked.error().message));
      finish_leaving();
    }));
  }

  void finish_leaving() {
    lease_ = 0;
    client_.stop_watch();
    for (auto* timer : {&renewal_, &lease_end_, &pause_, &absence_, &silence_, &drain_timeout_})
      timer->cancel();
    if (const auto call = std::exchange(left_, {})) call();
  }

  [[nodiscard]] bool lease_trusted() const { return lease_ != 0 && !lease_doubtful_; }

  asio::io_context& loop_;
  const Options options_;
  Callbacks callbacks_;
  const Log& log_;
  const membership::NodeId node_;
  Endpoint self_;  // what stands in the node's key
  const JobKeys keys_;
  const std::string members_;  // for messages
  Client client_;

  LeaseId lease_ = 0;
  LeaseClock lease_clock_;
  bool lease_doubtful_ = false;
  Backoff renewal_backoff_;
  LoopTimer renewal_;
  LoopTimer lease_end_;

  bool entered_ = false;     // the node's key is as it should be
  bool looking_ = false;     // requests of look() are under way
  bool stale_ = false;       // what look() finds is not what is
  bool up_to_date_ = false;  // the last look() has succeeded
  Backoff backoff_;
  LoopTimer pause_;  // before the next look()

  std::optional<Instant> decided_by_;  // of who is to be waited for: whether members of a former term live

  bool ever_answered_ = false;  // with what look() asks for
  std::optional<Instant> silent_since_;
  bool silence_logged_ = false;
  bool full_ = false;  // it has refused a write that has not been made since
  std::string last_failure_;
  LoopTimer silence_;  // when etcd has been away too long
  bool over_ = false;  // nothing more is asked of etcd, but to leave

  net::Listener listener_;        // for the next term
  std::optional<Revision> term_;  // while this agent runs the coordinator
  std::shared_ptr<JobStateLog> state_;
  std::unique_ptr<net::RendezvousServer> server_;
  Presence presence_{Millis(0)};
  LoopTimer absence_;

  std::optional<Endpoint> followed_;  // another agent's
  std::unique_ptr<net::AddressRace> race_;
  Backoff race_backoff_;
  LoopTimer race_pause_;    // before the next race
  const Instant deadline_;  // for the first coordinator to answer
  LoopTimer timeout_;       // for that
  std::string last_error_;
  std::string host_;  // where the coordinator is
  std::uint16_t port_ = 0;
  bool located_ = false;

  LoopTimer drain_timeout_;
  std::function<void()> drained_;
  std::function<void()> left_;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<net::CoordinatorHost> make_coordinator(asio::io_context& loop, Options options,
                                                       const Log& log) {
  return std::make_unique<Coordinator>(loop, std::move(options), log);
}

}  // namespace muster::etcd
