// SPDX-License-Identifier: Apache-2.0
// CoordinatorSeat: whether this agent runs the job's coordinator, and the coordinator if so. Without an order
// (--rdzv-conf is_host) an agent runs it if the endpoint is an address of this host and nobody listens there:
// of two agents that race for the port the kernel lets one win, and a musterd has won already. Owned by
// CoordinatedRendezvous; one loop. Failure: told through `decided`; a port that is taken is no failure unless
// is_host was given. Port 0 is the kernel's choice, which this agent says, for the other nodes' command.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/join/seat.h"
#include "launcher/network/interfaces.h"
#include "launcher/network/name_look_up.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {

class CoordinatorSeat final : public Seat {
 public:
  CoordinatorSeat(boost::asio::io_context& io, const Job& job, const Log& log);

  void take(const std::vector<InterfaceAddress>& own, const std::vector<std::string>& offered,
            Callbacks callbacks) override;
  [[nodiscard]] bool taken() const override { return server_ != nullptr; }
  [[nodiscard]] std::string host() const override;
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  [[nodiscard]] std::string title() const override;
  [[nodiscard]] std::string busy() const override;
  [[nodiscard]] std::string in_the_way(const Error& error) override;
  [[nodiscard]] std::vector<int> nodes_never_seen() const override;
  void welcomed() override { met_ = true; }
  void see_off(Millis patience, std::function<void()> gone) override;

 private:
  void listen(const std::function<void(Result<void>)>& decided);
  void look_up(bool here, const std::function<void(Result<void>)>& decided);
  [[nodiscard]] Result<void> publish();
  [[nodiscard]] Result<std::unique_ptr<net::RendezvousServer>> serve(net::RendezvousServerOptions options);
  void check_empty();

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::unique_ptr<net::RendezvousServer> server_;
  std::uint16_t port_;  // 0: this agent's to be chosen yet
  std::vector<InterfaceAddress> own_;
  std::vector<std::string> listening_;  // listening.h; empty: every address
  std::string place_text_;              // to be said of these by whoever listens there
  NameLookUp look_up_;
  boost::asio::steady_timer timer_;
  std::string busy_;  // why this agent could not listen
  bool in_use_ = false;
  bool met_ = false;        // a coordinator is there
  std::string in_the_way_;  // looked up once
  std::function<void()> agent_gone_;
  std::function<void()> gone_;
  Lifetime lifetime_;
};

/// Whether the host of an endpoint is this one, as far as that can be told without a look-up: a loopback
/// address, the host's name, or an address of an interface.
[[nodiscard]] bool names_this_host(const std::string& host, const std::vector<InterfaceAddress>& own,
                                   const std::string& own_name);

}  // namespace muster::launcher
