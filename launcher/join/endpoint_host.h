// SPDX-License-Identifier: Apache-2.0
// EndpointHost: the coordinator at the job's endpoint, if this agent runs it. Unless --rdzv-conf is_host
// decides, an agent runs it if the endpoint is an address of this host and the port is free: of two agents
// that bind it the kernel lets one win, and a musterd has won already. Owned by CoordinatedRendezvous; one
// loop. Failure: through `located`; a port in use is no failure unless is_host was given. With port 0 the
// kernel chooses, and this agent logs the port for the other nodes' command.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/agent_client/coordinator_host.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {

class EndpointHost final : public net::CoordinatorHost {
 public:
  /// `own`: this host's addresses; `offered`: those at which the others may try to reach it.
  EndpointHost(boost::asio::io_context& io, const Job& job, std::vector<InterfaceAddress> own,
               const std::vector<std::string>& offered, const Log& log);

  void start(Callbacks callbacks) override;
  [[nodiscard]] bool is_hosting() const override { return server_ != nullptr; }
  [[nodiscard]] std::string host() const override;
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  [[nodiscard]] std::string title() const override;
  [[nodiscard]] std::string listen_error() const override;
  [[nodiscard]] std::string port_owner_advice(const Error& error) override;
  [[nodiscard]] std::vector<int> nodes_never_seen() const override;
  void set_joined() override { reached_ = true; }
  void drain(Millis timeout, std::function<void()> done) override;

 private:
  void on_found(bool here, const std::vector<std::string>& found);
  void listen();
  void locate(const Result<void>& found);
  [[nodiscard]] Result<void> publish();
  [[nodiscard]] Result<std::unique_ptr<net::RendezvousServer>> serve(net::RendezvousServerOptions options);
  void check_empty();

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  Callbacks callbacks_;
  std::unique_ptr<net::RendezvousServer> server_;
  std::uint16_t port_;  // 0: this agent's to be chosen yet
  std::vector<InterfaceAddress> own_;
  std::vector<std::string> listening_;  // listening.h; empty: every address
  std::string warning_;                 // about these, to be logged when this agent listens there
  boost::asio::ip::tcp::resolver resolver_;
  bool is_looking_up_ = false;
  boost::asio::steady_timer timer_;
  std::string listen_error_;  // why this agent could not listen
  bool in_use_ = false;
  bool reached_ = false;     // the coordinator has answered
  std::string port_advice_;  // looked up once
  std::function<void()> drained_;
  Lifetime lifetime_;
};

}  // namespace muster::launcher
