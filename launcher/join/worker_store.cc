// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/worker_store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "launcher/network/listening.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

constexpr std::uint16_t kProbedPort = 29500;  // MASTER_PORT's usual number: firewalls let it through if any
constexpr std::chrono::seconds kRouteTimeout{5};
constexpr Millis kReachPause{2000};

/// Why the workers of this node may not reach those of the other one.
std::string unreachable_text(const Error& error, const std::string& other) {
  return fmt::format("{}. Is there a firewall between them? --iface and --local-addr choose what {} offers",
                     error.message, other);
}

}  // namespace

WorkerStore::WorkerStore(boost::asio::io_context& io, const Job& job, const Log& log)
    : io_(io), job_(job), log_(log), reach_pause_(io) {}

void WorkerStore::find_addresses() {
  const ElasticJob& elastic = job_.elastic;
  own_ = interface_addresses();
  offered_ = stays_on_host(job_)
                 ? std::vector{std::string(elastic.endpoint_host == "::1" ? "::1" : "127.0.0.1")}
                 : launcher::offered_addresses(
                       own_, {elastic.local_addr, elastic.interface, source_address(elastic.endpoint_host)});
}

Result<void> WorkerStore::open_port() {
  if (!port_.fds.empty() || job_.elastic.store_proxy || job_.elastic.ranks_given || !job_.unhealthy.empty())
    return {};
  MUSTER_TRY(port_, listen_at(listening_addresses(job_.elastic, offered_, own_), 0));
  return {};
}

std::uint16_t WorkerStore::offered_port() const {
  return job_.elastic.ranks_given && !job_.elastic.store_proxy ? job_.master_port : port_.port;
}

void WorkerStore::start(const control::Assignment& assignment, net::StoreProxy::Uplink uplink, bool linked,
                        const std::string& coordinator_host, Located located) {
  assignment_ = assignment;
  located_ = std::move(located);
  if (job_.elastic.store_proxy) return proxy(std::move(uplink), linked);
  if (job_.elastic.ranks_given) {
    // Where node 0 does not listen at all of its addresses, a name may lead past those on node 0 itself.
    const bool named = !is_numeric_address(job_.master_addr) && !is_loopback(job_.master_addr);
    const bool past = named && !coordinator_host.empty() && is_confined(job_.elastic);
    return finish(
        Location{past ? coordinator_host : job_.master_addr, job_.master_port, job_.elastic.interface});
  }
  assignment.group_rank == 0 ? serve() : look_for_first_node();
}

void WorkerStore::end() {
  cancel();
  server_.reset();
  proxy_.reset();
}

void WorkerStore::cancel() {
  race_.reset();
  cancel_reach();
  located_ = {};
}

void WorkerStore::finish(Result<Location> location) {
  if (const auto call = std::exchange(located_, {})) call(std::move(location));
}

void WorkerStore::serve() {
  net::ServerOptions options;
  options.listener = std::make_shared<net::Listener>(std::move(port_));
  auto server = net::Server::listen(io_, options, log_);
  if (!server) return finish(fail(ErrorCode::kIo, server.error().message));
  server_ = *std::move(server);
  find_route();
}

void WorkerStore::look_for_first_node() {
  net::AddressRace::Options options{.addresses = addresses_to_try(assignment_.master_addresses, own_),
                                    .port = assignment_.master_port};
  race_ = std::make_unique<net::AddressRace>(io_, std::move(options), [this](const auto& answer) {
    const std::string& first = assignment_.master_host;
    if (!answer)
      return finish(fail(ErrorCode::kPeerGone,
                         "{} cannot reach the first node, {}, which serves the workers' store: {}", job_.host,
                         first, unreachable_text(answer.error(), first)));
    const std::string interface = interface_of(own_, answer->local_address);
    log_.info(fmt::format("{} answers at {} from {} ({})", first,
                          endpoint_text(answer->address, assignment_.master_port), answer->local_address,
                          interface.empty() ? "unknown interface" : interface));
    finish(Location{answer->address, assignment_.master_port, interface});
  });
}

void WorkerStore::cancel_reach() {
  reach_.reset();
  reach_pause_.cancel();
  reach_lifetime_.renew();
}

void WorkerStore::check_reach(const control::Waiting& waiting, std::function<void(std::string)> unreachable) {
  cancel_reach();
  if (waiting.master_addresses.empty()) return;
  // A first node that is lost is known by then.
  const Instant deadline = after(2 * job_.elastic.rules.heartbeat_timeout);
  try_reach(waiting, deadline, std::move(unreachable));
}

/// Again and again until an address answers: a first node that is about to end does not answer either.
void WorkerStore::try_reach(const control::Waiting& waiting, Instant deadline,
                            std::function<void(std::string)> unreachable) {
  net::AddressRace::Options options{.addresses = addresses_to_try(waiting.master_addresses, own_),
                                    .port = waiting.master_port,
                                    .limit = time_left(deadline, SteadyClock::now())};
  reach_ = std::make_unique<net::AddressRace>(
      io_, std::move(options), [this, waiting, deadline, unreachable](const auto& answer) {
        const std::string& host = waiting.master_host;
        if (answer)
          return log_.info(
              fmt::format("{} answers at {} from {}", host, answer->address, answer->local_address));
        const Instant again = after(kReachPause);
        if (again < deadline)
          return reach_lifetime_.call_at(reach_pause_, again, [this, waiting, deadline, unreachable] {
            try_reach(waiting, deadline, unreachable);
          });
        unreachable(fmt::format("{} could take no place in the job: it cannot reach the first node, {}: {}",
                                job_.host, host, unreachable_text(answer.error(), host)));
      });
}

void WorkerStore::proxy(net::StoreProxy::Uplink uplink, bool linked) {
  auto proxy =
      net::StoreProxy::listen(io_, assignment_.generation, std::move(uplink), job_.elastic.proves, log_);
  if (!proxy) return finish(fail(ErrorCode::kIo, proxy.error().message));
  proxy_ = *std::move(proxy);
  find_route();
  if (proxy_ && linked) proxy_->linked(true);
}

Result<void> WorkerStore::receive(const control::Message& message) {
  if (!proxy_) return {};
  const bool was_attached = proxy_->attached();
  MUSTER_OK(proxy_->receive(message));
  if (!was_attached) finish_if_complete();
  return {};
}

// The workers' own connections (NCCL, gloo) go from node to node in any case. The first node tries another
// one, the others the first. Nobody has to listen for that: with a secret no port without one may be open, so
// an address that refuses counts as one that answers.
void WorkerStore::find_route() {
  route_.reset();
  const bool first = assignment_.group_rank == 0;
  // One interface is the route of whoever has, or was told to offer, no other.
  const std::string interface = interface_of(own_, offered_.front());
  const bool only = std::ranges::all_of(
      offered_, [&](const auto& address) { return interface_of(own_, address) == interface; });
  if (first && (only || assignment_.peer_addresses.empty())) {
    route_ = {interface, offered_.front()};
    return finish_if_complete();
  }
  net::AddressRace::Options options;
  options.addresses =
      addresses_to_try(first ? assignment_.peer_addresses : assignment_.master_addresses, own_);
  options.port = first && assignment_.peer_port != 0 ? assignment_.peer_port : kProbedPort;
  options.limit = kRouteTimeout;
  options.refusal_answers = true;
  race_ = std::make_unique<net::AddressRace>(io_, std::move(options),
                                             [this](const auto& answer) { on_route(answer); });
}

void WorkerStore::on_route(const Result<net::AddressRace::Answer>& answer) {
  const bool first = assignment_.group_rank == 0;
  const std::string& other = first ? assignment_.peer_host : assignment_.master_host;
  route_.emplace();
  if (answer) {
    route_->address = answer->local_address.empty() ? source_address(answer->address) : answer->local_address;
    route_->interface = interface_of(own_, route_->address);
    log_.info(fmt::format("{} answers at {} by {}", other, answer->address,
                          route_->interface.empty() ? "an unknown interface" : route_->interface));
  } else {
    route_->interface =
        interface_towards(first ? assignment_.peer_addresses : assignment_.master_addresses, own_);
    log_.warning(fmt::format("{} does not reach {}{}: {}. Their workers may not reach each other either",
                             job_.host, first ? "" : "the first node, ", other,
                             unreachable_text(answer.error(), other)));
  }
  finish_if_complete();
}

void WorkerStore::finish_if_complete() {
  if (!route_) return;
  if (proxy_) {
    if (proxy_->attached()) finish(Location{"127.0.0.1", proxy_->port(), route_->interface});
    return;
  }
  // The first node's, which the others find by themselves.
  const bool offered = std::ranges::find(offered_, route_->address) != offered_.end();
  finish(Location{offered ? route_->address : offered_.front(), assignment_.master_port, route_->interface});
}

}  // namespace muster::launcher
