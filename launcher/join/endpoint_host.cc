// SPDX-License-Identifier: Apache-2.0
// EndpointHost: the coordinator at the job's endpoint, if this agent runs it. Unless --rdzv-conf is_host
// decides, an agent runs it if the endpoint is an address of this host and the port is free: of two agents
// that bind it the kernel lets one win, and a musterd has won already. Owned by CoordinatedRendezvous; one
// loop. Failure: through `located`; a port in use is no failure unless is_host was given. With port 0 the
// kernel chooses, and this agent logs the port for the other nodes' command.
#include <algorithm>
#include <chrono>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "launcher/join/make_rendezvous.h"
#include "launcher/network/listening.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/net/dial.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
constexpr std::chrono::seconds kLookUpTimeout{5};

class EndpointHost final : public net::CoordinatorHost {
 public:
  EndpointHost(asio::io_context& io, const Job& job, std::vector<InterfaceAddress> own,
               const std::vector<std::string>& offered, const Log& log)
      : io_(io), job_(job), log_(log), port_(job.elastic.endpoint_port), own_(std::move(own)), timer_(io) {
    const ElasticJob& elastic = job.elastic;
    if (!is_loopback(elastic.endpoint_host) && !job.one_node() && is_confined(elastic))
      listening_ = addresses_at(elastic.endpoint_host, listening_addresses(elastic, offered, own_), own_);
  }

  void start(Callbacks callbacks) override {
    const ElasticJob& elastic = job_.elastic;
    const std::string& place = elastic.endpoint_host;
    callbacks_ = std::move(callbacks);
    // With TLS and no certificate it would have nothing to show: the coordinator is elsewhere, or a musterd.
    if (elastic.is_host == false || (elastic.tls && !elastic.tls_server)) return locate({});
    if (elastic.ranks_given && !job_.one_node() && is_numeric_address(place) &&
        !names_this_host(place, own_, ""))
      log_.warning(fmt::format(
          "this is node 0, but {} is no address of this host; give each node a --node-rank of its own",
          place));
    const bool here = elastic.is_host == true || names_this_host(place, own_, asio::ip::host_name());
    const bool named = !is_numeric_address(place) && !is_loopback(place);
    // Where the name leads matters to who does not listen everywhere.
    if (here && (listening_.empty() || !named)) return listen();
    if (!named) return locate({});
    // getaddrinfo may take a minute where no name server answers.
    asio::co_spawn(io_, net::look_up(place, after(kLookUpTimeout)),
                   lifetime_.guard([this, here](const std::exception_ptr&, const auto& addresses) {
                     std::vector<std::string> found;
                     if (addresses)
                       for (const auto& address : *addresses) found.push_back(address.to_string());
                     on_found(here, found);
                   }));
  }

  [[nodiscard]] bool is_hosting() const override { return server_ != nullptr; }
  [[nodiscard]] std::string host() const override {
    if (!is_hosting()) return job_.elastic.endpoint_host;
    // The endpoint may be an address that leads here from outside only.
    return is_loopback(job_.elastic.endpoint_host) ? job_.elastic.endpoint_host : connect_address(listening_);
  }

  [[nodiscard]] std::uint16_t port() const override { return port_; }
  [[nodiscard]] std::string title() const override {
    const std::string endpoint = endpoint_text(job_.elastic.endpoint_host, port_);
    return job_.elastic.ranks_given ? fmt::format("{} (node 0)", endpoint) : endpoint;
  }

  [[nodiscard]] std::string listen_error() const override {
    return listen_error_.empty() || !in_use_ ? listen_error_
                                             : listen_error_ + net::busy_port_advice({}, port_, true);
  }

  [[nodiscard]] std::string port_owner_advice(const Error& error) override {
    if (!in_use_ || reached_ || error.code == ErrorCode::kMismatch) return {};
    if (port_advice_.empty()) port_advice_ = net::busy_port_advice({}, port_, true);
    return port_advice_;
  }

  [[nodiscard]] std::vector<int> nodes_never_seen() const override {
    if (!is_hosting()) return {};
    return server_->coordinator().jobs().orders_never_seen(job_.run_id);
  }

  void set_joined() override { reached_ = true; }
  void drain(Millis timeout, std::function<void()> done) override {
    if (!is_hosting()) return done();
    drained_ = std::move(done);
    lifetime_.call_at(timer_, after(timeout), [this] {
      if (const auto call = std::exchange(drained_, {})) call();
    });
    check_empty();
  }

 private:
  // A name nobody knows is the client's to report.
  void on_found(bool here, const std::vector<std::string>& found) {
    const bool ours = here || std::ranges::any_of(found, [&](const std::string& address) {
                        return names_this_host(address, own_, "");
                      });
    if (!ours) return locate({});
    warning_ = name_warning(job_.elastic.endpoint_host, found, listening_, job_.elastic, own_);
    for (std::string& address : further_addresses(found, listening_, own_))
      listening_.push_back(std::move(address));
    listen();
  }

  void listen() {
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
        if (callbacks_.agent_gone) callbacks_.agent_gone();
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
      if (!warning_.empty()) log_.warning(warning_);
      return locate(publish());
    }
    if (elastic.is_host == true) return locate(fail(std::move(server).error()));
    listen_error_ = server.error().message;
    in_use_ = server.error().code == ErrorCode::kExhausted;
    locate({});
  }

  void locate(const Result<void>& found) {
    if (!found || port_ != 0) return callbacks_.located(found);
    const std::string& host = job_.elastic.endpoint_host;
    callbacks_.located(
        usage("--rdzv-endpoint={}:0: the agent on {}, which runs the coordinator, has logged its "
              "port; this agent runs none: give that port",
              host, host));
  }

  [[nodiscard]] Result<void> publish() {
    const std::string endpoint = endpoint_text(job_.elastic.endpoint_host, port_);
    if (job_.elastic.endpoint_port == 0)
      log_.warning(
          fmt::format("the coordinator of job {} listens; start the other nodes with "
                      "--rdzv-endpoint={}",
                      job_.run_id, endpoint));
    const std::string& path = job_.port_file;
    auto written = path.empty() ? Result<void>() : replace_file(path, endpoint + '\n', 0666);
    if (!written) return fail(ErrorCode::kIo, "--port-file=" + written.error().message);
    return {};
  }

  [[nodiscard]] Result<std::unique_ptr<net::RendezvousServer>> serve(net::RendezvousServerOptions options) {
    if (!listening_.empty()) {
      MUSTER_TRY(net::Listener listener,
                 listen_at(listening_, options.store.port, options.store.name_port_owner));
      options.store.listener = std::make_shared<net::Listener>(std::move(listener));
    }
    return net::RendezvousServer::listen(io_, options, log_);
  }

  void check_empty() {
    if (!drained_ || server_->coordinator().stats().num_open > 0) return;
    timer_.cancel();
    std::exchange(drained_, {})();
  }

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  Callbacks callbacks_;
  std::unique_ptr<net::RendezvousServer> server_;
  std::uint16_t port_;  // 0: this agent's to be chosen yet
  std::vector<InterfaceAddress> own_;
  std::vector<std::string> listening_;  // listening.h; empty: every address
  std::string warning_;                 // about these, to be logged when this agent listens there
  LoopTimer timer_;
  std::string listen_error_;  // why this agent could not listen
  bool in_use_ = false;
  bool reached_ = false;     // the coordinator has answered
  std::string port_advice_;  // looked up once
  std::function<void()> drained_;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<net::CoordinatorHost> make_endpoint_host(asio::io_context& io, const Job& job,
                                                         std::vector<InterfaceAddress> own,
                                                         const std::vector<std::string>& offered,
                                                         const Log& log) {
  return std::make_unique<EndpointHost>(io, job, std::move(own), offered, log);
}

}  // namespace muster::launcher
