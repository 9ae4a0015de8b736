// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/etcd_seat.h"

#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/network/listening.h"
#include "rendezvous/net/dial.h"
#include "rendezvous/protocol/auth.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
constexpr Backoff::Options kBackoff{.first = Millis(50), .max = Millis(2000), .factor = 1.6, .jitter = 0.5};
constexpr std::chrono::seconds kFarewell{3};  // for an etcd that may be gone

}  // namespace

EtcdSeat::EtcdSeat(asio::io_context& io, const Job& job, const Log& log)
    : io_(io),
      job_(job),
      log_(log),
      node_(auth::random_node_id()),
      backoff_(kBackoff, node_.low),
      pause_(io),
      patience_(io),
      alive_(std::make_shared<bool>(true)) {}

EtcdSeat::~EtcdSeat() {
  *alive_ = false;
}

void EtcdSeat::take(const std::vector<InterfaceAddress>& own, const std::vector<std::string>& offered,
                    Callbacks callbacks) {
  own_ = own;
  offered_ = offered;
  callbacks_ = std::move(callbacks);
  deadline_ = SteadyClock::now() + job_.elastic.connect_timeout;
  etcd::Place self;
  self.host = job_.host;
  self.addresses = offered_;
  session_ = std::make_unique<EtcdSession>(io_, job_, node_, std::move(self), session_events(), log_);
  session_->start();
}

EtcdSession::Events EtcdSeat::session_events() {
  EtcdSession::Events out;
  out.open = [this] { return open(); };
  out.elected = [this](const etcd::Inheritance& inheritance) { serve(inheritance); };
  out.deposed = [this](const std::string& why) { stop_serving(why); };
  out.follow = [this](const etcd::Place& place) { follow(place); };
  out.absent = [this](const membership::NodeId& id) {
    if (server_) server_->coordinator().evict_node(job_.run_id, id, "its lease in etcd is over");
  };
  out.lost = [this](const Error& error) { end(error); };
  return out;
}

std::string EtcdSeat::title() const {
  if (known_) return net::endpoint_text(host_, port_);
  std::string out;
  for (const auto& member : job_.elastic.etcd->members)
    out += fmt::format("{}{}", out.empty() ? "" : ",", net::endpoint_text(member.host, member.port));
  return out;
}

void EtcdSeat::welcomed() {
  if (session_) session_->welcomed();
}

// This agent's term.

Result<etcd::Place> EtcdSeat::open() {
  if (!listener_.fd) {
    MUSTER_TRY(listener_, listen_at(listening_addresses(job_.elastic, offered_, own_), 0));
  }
  etcd::Place out;
  out.host = job_.host;
  out.addresses = offered_;
  out.port = listener_.port;
  return out;
}

void EtcdSeat::serve(const etcd::Inheritance& inheritance) {
  race_.reset();
  pause_.cancel();
  patience_.cancel();
  followed_.reset();
  state_ = std::make_shared<net::EtcdStateLog>(io_, job_.run_id, inheritance.record,
                                               [this](const auto& state, std::function<void()> written) {
                                                 session_->write(state, std::move(written));
                                               });
  net::RendezvousServerOptions options;
  const std::uint16_t port = listener_.port;
  hand_over(std::exchange(listener_, {}), options.store);
  options.control.secret = job_.elastic.secret;
  options.control.heartbeat_interval = job_.elastic.heartbeat_interval;
  options.control.state = state_;
  options.control.restart_grace = job_.elastic.reconnect_for;
  options.control.on_close = [this, alive = alive_] {
    // Not from within the server, which is about to be stopped.
    asio::post(io_, [this, alive] {
      if (*alive) check_empty();
    });
  };
  auto server = net::RendezvousServer::listen(io_, options, log_);
  if (!server) return end(server.error());
  server_ = *std::move(server);
  state_->renew();
  if (inheritance.record)
    log_.warning(
        fmt::format("this agent takes over the coordinator of job {}: generation {}, {} of {} "
                    "restarts used",
                    job_.run_id, inheritance.record->world.generation, inheritance.record->restarts_used,
                    inheritance.record->settings.max_restarts));
  known(own_door(listening_addresses(job_.elastic, offered_, own_)), port);
}

void EtcdSeat::stop_serving(const std::string& why) {
  if (!server_) return;
  log_.warning(fmt::format("this agent no longer runs the coordinator of job {}: {}", job_.run_id, why));
  state_->close();
  server_->stop();
  server_.reset();
  state_.reset();
}

// Another agent's.

void EtcdSeat::follow(const etcd::Place& place) {
  if (followed_ == place) return;
  followed_ = place;
  if (!known_) {
    patience_.expires_at(deadline_);
    patience_.async_wait([this, alive = alive_](const auto& error) {
      if (error || !*alive || known_) return;
      end({ErrorCode::kTimeout,
           fmt::format(
               "the coordinator of job {} on {}, as etcd at {} names it, does not answer: {}; is there "
               "a firewall between them? --iface and --local-addr choose what a node offers",
               job_.run_id, followed_->host, title(), last_error_)});
    });
  }
  backoff_ = Backoff(kBackoff, node_.low);
  race();
}

void EtcdSeat::race() {
  net::AddressRace::Course course;
  course.addresses = addresses_to_try(followed_->addresses, own_);
  course.port = followed_->port;
  race_ = std::make_unique<net::AddressRace>(
      io_, std::move(course), [this](const Result<net::AddressRace::Winner>& winner) {
        if (winner) return known(winner->address, followed_->port);
        last_error_ = winner.error().message;
        log_.info(fmt::format("the coordinator on {} does not answer: {}", followed_->host, last_error_));
        // It may be gone, which etcd knows when its lease is over.
        pause_.expires_after(backoff_.next());
        pause_.async_wait([this, alive = alive_](const auto& error) {
          if (!error && *alive && followed_) race();
        });
      });
}

void EtcdSeat::known(std::string host, std::uint16_t port) {
  host_ = std::move(host);
  port_ = port;
  if (std::exchange(known_, true)) {
    if (const auto call = callbacks_.moved) call();
    return;
  }
  patience_.cancel();
  if (const auto call = std::exchange(callbacks_.decided, {})) call({});
}

void EtcdSeat::end(const Error& error) {
  patience_.cancel();
  race_.reset();
  pause_.cancel();
  const auto decided = std::exchange(callbacks_.decided, {});
  const auto lost = std::exchange(callbacks_.lost, {});
  callbacks_.moved = {};
  if (decided) return decided(fail(error));
  if (lost) lost(error);
}

// Parting.

void EtcdSeat::see_off(Millis patience, std::function<void()> gone) {
  if (!session_) return gone();
  callbacks_ = {};
  race_.reset();
  pause_.cancel();
  gone_ = std::move(gone);
  patience_.expires_after(patience);
  patience_.async_wait([this, alive = alive_](const auto& error) {
    if (!error && *alive) part();
  });
  check_empty();
}

// Those who have to hear how the job ended are waited for; a job that goes on is the next coordinator's.
void EtcdSeat::check_empty() {
  if (!gone_) return;
  if (!server_) return part();
  const membership::Round* round = server_->coordinator().jobs().find_round(job_.run_id);
  const bool over = round == nullptr || round->phase == membership::Phase::kClosed;
  if (over && server_->coordinator().stats().num_open > 0) return;
  if (over) session_->write({}, [] {});
  part();
}

void EtcdSeat::part() {
  patience_.cancel();
  const auto gone = std::exchange(gone_, {});
  if (!gone) return;
  session_->leave(kFarewell, [this, gone, alive = alive_] {
    if (!*alive) return;
    if (server_) server_->stop();
    gone();
  });
}

}  // namespace muster::launcher
