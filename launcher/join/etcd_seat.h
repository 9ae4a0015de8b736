// SPDX-License-Identifier: Apache-2.0
// EtcdSeat: a coordinator that the agents elect over an etcd. Whoever is elected serves it on a port of the
// kernel's choice and publishes its addresses; the others race them and connect. The coordinator's state is
// kept in etcd before anything of it is announced, so when its agent is gone, or cut off from etcd, the next
// one goes on with the generation and the budget as they were. Owned by CoordinatedRendezvous; one loop.
// Failure: an etcd, or a coordinator, that cannot be reached in time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/job/job.h"
#include "launcher/join/etcd_session.h"
#include "launcher/join/seat.h"
#include "rendezvous/agent_client/address_race.h"
#include "rendezvous/base/backoff.h"
#include "rendezvous/base/log.h"
#include "rendezvous/etcd/etcd_state_log.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {

class EtcdSeat final : public Seat {
 public:
  EtcdSeat(boost::asio::io_context& io, const Job& job, const Log& log);
  ~EtcdSeat() override;
  EtcdSeat(const EtcdSeat&) = delete;
  EtcdSeat& operator=(const EtcdSeat&) = delete;

  void take(const std::vector<InterfaceAddress>& own, const std::vector<std::string>& offered,
            Callbacks callbacks) override;
  [[nodiscard]] bool taken() const override { return server_ != nullptr; }
  [[nodiscard]] bool passes_on() const override { return true; }
  [[nodiscard]] std::string host() const override { return host_; }
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  [[nodiscard]] std::string title() const override;
  [[nodiscard]] membership::NodeId node() const override { return node_; }
  void welcomed() override;
  void see_off(Millis patience, std::function<void()> gone) override;

 private:
  [[nodiscard]] EtcdSession::Events session_events();
  [[nodiscard]] Result<etcd::Place> open();
  void serve(const etcd::Inheritance& inheritance);
  void stop_serving(const std::string& why);
  void follow(const etcd::Place& place);
  void race();
  void known(std::string host, std::uint16_t port);
  void end(const Error& error);
  void check_empty();
  void part();

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  membership::NodeId node_;
  std::vector<InterfaceAddress> own_;
  std::vector<std::string> offered_;
  Callbacks callbacks_;
  std::unique_ptr<EtcdSession> session_;
  net::Listener listener_;  // for the next term
  std::shared_ptr<net::EtcdStateLog> state_;
  std::unique_ptr<net::RendezvousServer> server_;  // in this agent's term
  std::optional<etcd::Place> followed_;            // another agent's
  std::unique_ptr<net::AddressRace> race_;
  Backoff backoff_;
  boost::asio::steady_timer pause_;     // before the next race
  Instant deadline_{};                  // for the first coordinator to answer
  boost::asio::steady_timer patience_;  // with a coordinator that does not answer, and in see_off()
  std::string last_error_;
  std::string host_;  // where the coordinator is
  std::uint16_t port_ = 0;
  bool known_ = false;
  std::function<void()> gone_;
  std::shared_ptr<bool> alive_;  // for handlers that are under way
};

}  // namespace muster::launcher
