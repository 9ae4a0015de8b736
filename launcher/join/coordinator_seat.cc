// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/coordinator_seat.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <unistd.h>
#include <utility>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/network/listening.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/net/dial.h"
#include "rendezvous/net/port_owner.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;

std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

bool is_numeric(const std::string& host) {
  boost::system::error_code error;
  (void)asio::ip::make_address(host, error);
  return !error;
}

}  // namespace

bool names_this_host(const std::string& host, const std::vector<InterfaceAddress>& own,
                     const std::string& own_name) {
  if (is_loopback(host) || (!own_name.empty() && host == own_name)) return true;
  boost::system::error_code error;
  const auto wanted = asio::ip::make_address(host, error);
  if (error) return false;
  return std::any_of(own.begin(), own.end(), [&](const InterfaceAddress& entry) {
    boost::system::error_code not_numeric;
    const auto address = asio::ip::make_address(entry.address, not_numeric);
    return !not_numeric && address == wanted;
  });
}

CoordinatorSeat::CoordinatorSeat(asio::io_context& io, const Job& job, const Log& log)
    : io_(io), job_(job), log_(log), port_(job.elastic.endpoint_port), look_up_(io), timer_(io) {}

void CoordinatorSeat::take(const std::vector<InterfaceAddress>& own, const std::vector<std::string>& offered,
                           Callbacks callbacks) {
  const ElasticJob& elastic = job_.elastic;
  const std::function<void(Result<void>)> decided = [this, tell = std::move(callbacks.decided)](
                                                        const Result<void>& seat) {
    if (!seat || port_ != 0) return tell(seat);
    tell(fail(ErrorCode::kInvalidArgument,
              fmt::format("--rdzv-endpoint={}:0: the agent on {}, which runs the coordinator, knows the port "
                          "that it was given and has said it; this is another host, or it may run none: "
                          "give that port",
                          job_.elastic.endpoint_host, job_.elastic.endpoint_host)));
  };
  agent_gone_ = std::move(callbacks.agent_gone);
  const std::string& place = elastic.endpoint_host;
  if (elastic.is_host == false) return decided({});
  // It would have nothing to show: the coordinator is elsewhere, or a musterd.
  if (elastic.tls && !elastic.tls_server) return decided({});
  own_ = own;
  if (!is_loopback(place) && !job_.one_node() && is_confined(elastic))
    listening_ = addresses_at(place, listening_addresses(elastic, offered, own), own);
  const bool here = elastic.is_host == true || names_this_host(place, own, host_name());
  const bool named = !is_numeric(place) && !is_loopback(place);
  // Where the name leads matters to who does not listen everywhere.
  if (here && (listening_.empty() || !named)) return listen(decided);
  if (!named) return decided({});
  look_up(here, decided);
}

// A name nobody knows is the client's to report.
void CoordinatorSeat::look_up(bool here, const std::function<void(Result<void>)>& decided) {
  look_up_.start(job_.elastic.endpoint_host, [this, here, decided](const std::vector<std::string>& found) {
    const bool ours = here || std::any_of(found.begin(), found.end(), [&](const std::string& address) {
                        return names_this_host(address, own_, "");
                      });
    if (!ours) return decided({});
    place_text_ =
        text_of_place("the coordinator", job_.elastic.endpoint_host, found, listening_, job_.elastic, own_);
    for (std::string& address : further_addresses(found, listening_, own_))
      listening_.push_back(std::move(address));
    listen(decided);
  });
}

void CoordinatorSeat::listen(const std::function<void(Result<void>)>& decided) {
  const ElasticJob& elastic = job_.elastic;
  net::RendezvousServerOptions options;
  if (is_loopback(elastic.endpoint_host))
    options.store.host = elastic.endpoint_host;
  else if (job_.one_node())
    options.store.host = "127.0.0.1";
  options.store.port = port_;
  // Of several agents here all but one find the port taken, and only one that does not reach a coordinator
  // asks by whom: looking at the descriptors of all processes cost 64 agents 2 s.
  options.store.name_port_owner = elastic.is_host == true;
  options.control.secret = elastic.secret;
  // With is_host the other job's own host is not at this port: its agents are here by mistake.
  if (elastic.is_host == true) options.control.jobs.only_job = job_.run_id;
  options.control.jobs.outlives_jobs = false;
  options.control.tls = elastic.tls_server;
  options.control.heartbeat_interval = elastic.heartbeat_interval;
  options.control.on_close = lifetime_.guard([this] {
    // Not from within the server, which is about to be stopped.
    asio::post(io_, lifetime_.guard([this] {
      if (agent_gone_) agent_gone_();
      check_empty();
    }));
  });
  if (elastic.ranks_given) {
    options.control.jobs.rules = elastic.rules;
    options.store_per_generation = !elastic.store_proxy;
  }
  auto server = serve(std::move(options));
  if (server) {
    server_ = *std::move(server);
    port_ = server_->port();
    if (!place_text_.empty()) log_.warning(place_text_);
    return decided(publish());
  }
  if (elastic.is_host == true) return decided(fail(std::move(server).error()));
  busy_ = server.error().message;
  in_use_ = server.error().code == ErrorCode::kExhausted;
  decided({});
}

Result<void> CoordinatorSeat::publish() {
  const std::string endpoint = net::endpoint_text(job_.elastic.endpoint_host, port_);
  if (job_.elastic.endpoint_port == 0)
    log_.warning(
        fmt::format("the coordinator of job {} listens; start the other nodes with "
                    "--rdzv-endpoint={}",
                    job_.run_id, endpoint));
  const std::string& path = job_.port_file;
  if (path.empty()) return {};
  // Whoever waits for the file finds all of it.
  const std::string unfinished = fmt::format("{}.{}", path, ::getpid());
  std::ofstream file(unfinished, std::ios::trunc);
  file << endpoint << '\n';
  file.close();
  if (file && std::rename(unfinished.c_str(), path.c_str()) == 0) return {};
  std::string text = errno_error("--port-file=" + path, errno).message;
  (void)std::remove(unfinished.c_str());
  return fail(ErrorCode::kIo, std::move(text));
}

Result<std::unique_ptr<net::RendezvousServer>> CoordinatorSeat::serve(net::RendezvousServerOptions options) {
  if (!listening_.empty()) {
    MUSTER_TRY(net::Listener listener,
               listen_at(listening_, options.store.port, options.store.name_port_owner));
    hand_over(std::move(listener), options.store);
  }
  return net::RendezvousServer::listen(io_, options, log_);
}

std::string CoordinatorSeat::busy() const {
  return busy_.empty() || !in_use_ ? busy_ : busy_ + net::busy_port_advice({}, port_, true);
}

std::string CoordinatorSeat::in_the_way(const Error& error) {
  if (!in_use_ || met_ || error.code == ErrorCode::kMismatch) return {};
  if (in_the_way_.empty()) in_the_way_ = net::busy_port_advice({}, port_, true);
  return in_the_way_;
}

std::string CoordinatorSeat::title() const {
  const std::string endpoint = net::endpoint_text(job_.elastic.endpoint_host, port_);
  return job_.elastic.ranks_given ? fmt::format("{} (node 0)", endpoint) : endpoint;
}

std::vector<int> CoordinatorSeat::nodes_never_seen() const {
  if (!taken()) return {};
  return server_->coordinator().jobs().orders_never_seen(job_.run_id);
}

std::string CoordinatorSeat::host() const {
  if (!taken()) return job_.elastic.endpoint_host;
  // The endpoint may be an address that leads here from outside only.
  return is_loopback(job_.elastic.endpoint_host) ? job_.elastic.endpoint_host : own_door(listening_);
}

void CoordinatorSeat::see_off(Millis patience, std::function<void()> gone) {
  if (!taken()) return gone();
  gone_ = std::move(gone);
  timer_.expires_after(patience);
  timer_.async_wait(lifetime_.guard([this](const boost::system::error_code& error) {
    if (const auto call = error ? nullptr : std::exchange(gone_, {})) call();
  }));
  check_empty();
}

void CoordinatorSeat::check_empty() {
  if (!gone_ || server_->coordinator().stats().num_open > 0) return;
  timer_.cancel();
  std::exchange(gone_, {})();
}

}  // namespace muster::launcher
