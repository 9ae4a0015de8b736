// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/etcd/coordinator.h"

#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "rendezvous/net/dial.h"

namespace muster::etcd {
namespace {

namespace asio = boost::asio;
constexpr Backoff::Options kBackoff{.first = Millis(50), .max = Millis(2000), .factor = 1.6, .jitter = 0.5};
constexpr std::chrono::seconds kLeaveTimeout{3};  // for an etcd that may be gone

}  // namespace

Coordinator::Coordinator(asio::io_context& loop, Options options, const Log& log)
    : loop_(loop),
      options_(std::move(options)),
      log_(log),
      node_(auth::random_node_id()),
      session_(loop, options_, node_, session_events(), log),
      backoff_(kBackoff, node_.low),
      pause_(loop),
      deadline_(SteadyClock::now() + options_.connect_timeout),
      timeout_(loop) {}

void Coordinator::start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  session_.start();
}

std::string Coordinator::title() const {
  return located_ ? net::endpoint_text(host_, port_) : member_list(options_.etcd);
}

void Coordinator::drain(Millis timeout, std::function<void()> done) {
  callbacks_ = {};
  race_.reset();
  pause_.cancel();
  drained_ = std::move(done);
  lifetime_.call_at(timeout_, SteadyClock::now() + timeout, [this] { leave(); });
  leave_if_empty();
}

Session::Events Coordinator::session_events() {
  Session::Events out;
  out.listen = [this] { return listen(); };
  out.elected = [this](const RecoveredJob& job, std::shared_ptr<JobStateLog> state) {
    serve(job, std::move(state));
  };
  out.deposed = [this](const std::string& why) { stop_serving(why); };
  out.follow = [this](const Endpoint& endpoint) { follow(endpoint); };
  out.absent = [this](const membership::NodeId& id) {
    if (server_) server_->coordinator().evict_node(options_.job, id, "its lease in etcd is over");
  };
  out.lost = [this](const Error& error) { end(error); };
  return out;
}

// This agent's term.

Result<Endpoint> Coordinator::listen() {
  if (!listener_.fd) {
    MUSTER_TRY(listener_, options_.listen());
  }
  Endpoint out = options_.self;
  out.port = listener_.port;
  return out;
}

void Coordinator::serve(const RecoveredJob& job, std::shared_ptr<JobStateLog> state) {
  race_.reset();
  pause_.cancel();
  timeout_.cancel();
  followed_.reset();
  state_ = std::move(state);
  net::RendezvousServerOptions options;
  const std::uint16_t port = listener_.port;
  options.store.listen_fd = listener_.fd.release();
  for (UniqueFd& other : listener_.others) options.store.more_listen_fds.push_back(other.release());
  listener_ = {};
  options.control.secret = options_.secret;
  options.control.heartbeat_interval = options_.heartbeat_interval;
  options.control.state = state_;
  options.control.restart_grace = options_.reconnect_timeout;
  // Not from within the server, which is about to be stopped.
  options.control.on_close = [this] { asio::post(loop_, lifetime_.guard([this] { leave_if_empty(); })); };
  auto server = net::RendezvousServer::listen(loop_, options, log_);
  if (!server) return end(server.error());
  server_ = *std::move(server);
  if (job.record)
    log_.warning(
        fmt::format("this agent takes over the coordinator of job {}: generation {}, {} of {} restarts used",
                    options_.job, job.record->world.generation, job.record->restarts_used,
                    job.record->settings.max_restarts));
  locate(options_.own_address, port);
}

void Coordinator::stop_serving(const std::string& why) {
  if (!server_) return;
  log_.warning(fmt::format("this agent no longer runs the coordinator of job {}: {}", options_.job, why));
  server_->stop();
  server_.reset();
  state_.reset();
}

// Another agent's.

void Coordinator::follow(const Endpoint& endpoint) {
  if (followed_ == endpoint) return;
  followed_ = endpoint;
  if (!located_)
    lifetime_.call_at(timeout_, deadline_, [this] {
      if (followed_ && !located_) end(unreachable());
    });
  backoff_ = Backoff(kBackoff, node_.low);
  race();
}

Error Coordinator::unreachable() const {
  return {
      ErrorCode::kTimeout,
      fmt::format("the coordinator of job {} on {}, as etcd at {} names it, does not answer: {}; is there "
                  "a firewall between them? --iface and --local-addr choose what a node offers",
                  options_.job, followed_->host, title(), last_error_)};
}

void Coordinator::race() {
  net::AddressRace::Options options;
  options.addresses = options_.sort_addresses(followed_->addresses);
  options.port = followed_->port;
  race_ = std::make_unique<net::AddressRace>(
      loop_, std::move(options), [this](const Result<net::AddressRace::Answer>& answer) {
        if (answer) return locate(answer->address, followed_->port);
        last_error_ = answer.error().message;
        log_.info(fmt::format("the coordinator on {} does not answer: {}", followed_->host, last_error_));
        // It may be gone, which etcd knows when its lease is over.
        lifetime_.call_at(pause_, SteadyClock::now() + backoff_.next(), [this] {
          if (followed_) race();
        });
      });
}

void Coordinator::locate(std::string host, std::uint16_t port) {
  host_ = std::move(host);
  port_ = port;
  if (std::exchange(located_, true)) {
    if (const auto call = callbacks_.moved) call();
    return;
  }
  timeout_.cancel();
  if (const auto call = std::exchange(callbacks_.located, {})) call({});
}

// From the loop: the events may end with the destructor.
void Coordinator::end(const Error& error) {
  timeout_.cancel();
  race_.reset();
  pause_.cancel();
  callbacks_.moved = {};
  asio::post(loop_, lifetime_.guard([this, error] {
    const auto located = std::exchange(callbacks_.located, {});
    const auto lost = std::exchange(callbacks_.lost, {});
    if (located) return located(fail(error));
    if (lost) lost(error);
  }));
}

// Those who have to hear how the job ended are waited for; a job that goes on is the next coordinator's.
void Coordinator::leave_if_empty() {
  if (!drained_) return;
  if (!server_) return leave();
  const membership::Round* round = server_->coordinator().jobs().find_round(options_.job);
  const bool over = round == nullptr || round->phase == membership::Phase::kClosed;
  if (over && server_->coordinator().stats().num_open > 0) return;
  if (over) state_->remove();
  leave();
}

void Coordinator::leave() {
  timeout_.cancel();
  const auto done = std::exchange(drained_, {});
  if (!done) return;
  session_.leave(kLeaveTimeout, [this, done] {
    if (server_) server_->stop();
    done();
  });
}

}  // namespace muster::etcd
