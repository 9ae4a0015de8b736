// SPDX-License-Identifier: Apache-2.0
// ElasticRendezvous: where the workers of a generation find their store, and the ranks that go with it.
#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/job/generation_outcome.h"
#include "launcher/join/coordinator_seat.h"
#include "launcher/join/elastic_rendezvous.h"
#include "launcher/join/etcd_seat.h"
#include "launcher/network/listening.h"
#include "launcher/network/machine_id.h"
#include "launcher/network/strangers.h"
#include "rendezvous/net/dial.h"

namespace muster::launcher {

namespace {

constexpr std::uint16_t kProbedPort =
    29500;  // MASTER_PORT's usual number, which firewalls let through if any
constexpr std::chrono::seconds kWayPatience{5};

}  // namespace

// The workers' store.

void ElasticRendezvous::serve() {
  net::ServerOptions options;
  hand_over(std::move(port_), options);
  auto store = net::Server::listen(io_, options, log_);
  if (!store) return fail_join(kExitSystem, store.error().message);
  store_ = *std::move(store);
  find_way();
}

void ElasticRendezvous::look_for_first_node() {
  net::AddressRace::Course course;
  course.addresses = addresses_to_try(assigned_->master_addresses, own_);
  course.port = assigned_->master_port;
  race_ = std::make_unique<net::AddressRace>(io_, std::move(course),
                                             [this](const auto& winner) { on_raced(winner); });
}

void ElasticRendezvous::on_raced(const Result<net::AddressRace::Winner>& winner) {
  if (winner) {
    const std::string interface = interface_of(own_, winner->local_address);
    log_.info(fmt::format("{} answers at {} from {} ({})", assigned_->master_host,
                          net::endpoint_text(winner->address, assigned_->master_port), winner->local_address,
                          interface.empty() ? "unknown interface" : interface));
    return take_part(winner->address, interface);
  }
  fail_generation(fmt::format(
      "{} cannot reach the first node, {}, which serves the workers' store: {}. Is there a firewall between "
      "them? --iface and --local-addr choose what {} offers",
      job_.host, assigned_->master_host, winner.error().message, assigned_->master_host));
}

// A place that this node could not fill is better left to another. Members that cannot reach the first node
// end their generation; nobody outside of it has to.
void ElasticRendezvous::check_reach(const control::Waiting& waiting) {
  if (waiting.master_addresses.empty()) return;
  net::AddressRace::Course course;
  course.addresses = addresses_to_try(waiting.master_addresses, own_);
  course.port = waiting.master_port;
  const Millis patience =
      2 * job_.elastic.rules.heartbeat_timeout;  // a first node that is lost is known by then
  reach_ = std::make_unique<ReachCheck>(
      io_, std::move(course), patience,
      [this, host = waiting.master_host](const Result<net::AddressRace::Winner>& winner) {
        if (winner)
          return log_.info(
              fmt::format("{} answers at {} from {}", host, winner->address, winner->local_address));
        const std::string text = fmt::format(
            "{} is outside the world and could take no place in it: it cannot reach the first node, {}: {}. "
            "Is "
            "there a firewall between them? --iface and --local-addr choose what {} offers",
            job_.host, host, winner.error().message, host);
        if (can_be_spared())
          fail_join(kExitRendezvous, text);
        else
          log_.warning(text);
      });
}

// The coordinator ends the generation for everybody, or the job.
void ElasticRendezvous::fail_generation(std::string text) {
  control::WorkerFailed failure;
  failure.generation = assigned_->generation;
  failure.exit_code = kExitRendezvous;
  failure.text = std::move(text);
  log_.error(failure.text);
  client_->worker_failed(failure);
}

// The coordinator's store, by the connection that is there already.

void ElasticRendezvous::proxy() {
  auto proxy =
      net::StoreProxy::listen(io_, assigned_->generation,
                              {[this](const control::Message& message) { client_->send_store(message); },
                               [this] { return client_->unsent_bytes(); }},
                              {}, log_);
  if (!proxy) return fail_join(kExitSystem, proxy.error().message);
  proxy_ = *std::move(proxy);
  find_way();
  if (linked_) proxy_->linked(true);
}

// The workers' own connections (NCCL, gloo) go from node to node in any case. The first node tries another
// one, the others the first. Nobody has to listen for that: with a secret no port without one may be open, so
// an address that refuses counts as one that answers.
void ElasticRendezvous::find_way() {
  way_.reset();
  const bool first = assigned_->group_rank == 0;
  // One interface is the way of whoever has, or was told to offer, no other.
  const auto only = only_interface(own_, offered_);
  if (first && (only || assigned_->peer_addresses.empty())) {
    way_ = {only ? *only : interface_of(own_, offered_.front()), offered_.front()};
    return begin();
  }
  net::AddressRace::Course course;
  course.addresses = addresses_to_try(first ? assigned_->peer_addresses : assigned_->master_addresses, own_);
  course.port = first && assigned_->peer_port != 0 ? assigned_->peer_port : kProbedPort;
  course.limit = kWayPatience;
  course.refusal_answers = true;
  race_ = std::make_unique<net::AddressRace>(io_, std::move(course),
                                             [this](const auto& winner) { on_way(winner); });
}

void ElasticRendezvous::on_way(const Result<net::AddressRace::Winner>& winner) {
  const bool first = assigned_->group_rank == 0;
  const std::string& other = first ? assigned_->peer_host : assigned_->master_host;
  way_.emplace();
  if (winner) {
    way_->address = winner->local_address.empty() ? source_address(winner->address) : winner->local_address;
    way_->interface = interface_of(own_, way_->address);
    log_.info(fmt::format("{} answers at {} by {}", other, winner->address,
                          way_->interface.empty() ? "an unknown interface" : way_->interface));
  } else {
    way_->interface =
        interface_towards(first ? assigned_->peer_addresses : assigned_->master_addresses, own_);
    log_.warning(
        fmt::format("{} does not reach {}{}: {}. Their workers may not reach each other either; is "
                    "there a firewall between them? --iface and --local-addr choose what {} offers",
                    job_.host, first ? "" : "the first node, ", other, winner.error().message, other));
  }
  begin();
}

// When all is known.
void ElasticRendezvous::begin() {
  if (!way_ || !joined_) return;
  if (proxy_) {
    if (!proxy_->attached()) return;
    assigned_->master_port = proxy_->port();
    return take_part("127.0.0.1", way_->interface);
  }
  // The first node's, which the others find by themselves.
  const bool offered = std::find(offered_.begin(), offered_.end(), way_->address) != offered_.end();
  take_part(offered ? way_->address : offered_.front(), way_->interface);
}

void ElasticRendezvous::on_store(const control::Message& message) {
  if (!proxy_) return;
  const bool was_attached = proxy_->attached();
  if (const auto received = proxy_->receive(message); !received)
    return fail_generation(fmt::format("{}: {}", job_.host, received.error().message));
  if (!was_attached) begin();
}

void ElasticRendezvous::take_part(std::string master_addr, std::string interface) {
  const control::Assignment& from = *assigned_;
  Assignment out;
  out.attempt = from.restarts_used;
  out.group_rank = from.group_rank;
  out.group_world_size = from.group_world_size;
  out.base_rank = from.base_rank;
  out.world_size = from.world_size;
  out.role_base_rank = from.role_base_rank;
  out.role_world_size = from.role_world_size;
  out.master_addr = std::move(master_addr);
  out.master_port = from.master_port;
  out.interface = std::move(interface);
  out.generation = from.generation;
  finish_join(std::move(out));
}

void ElasticRendezvous::warn_of_strangers() {
  if (std::exchange(warned_, true)) return;
  if (const auto text = open_to_strangers(job_)) log_.warning(*text);
}

}  // namespace muster::launcher
