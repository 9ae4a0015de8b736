// SPDX-License-Identifier: Apache-2.0
// etcd::Coordinator: a job's coordinator that the agents elect over an etcd. The elected agent serves it on a
// port of the kernel's choice and publishes its endpoint; the others race its addresses and connect. Each
// agent has a lease, a node's key, and a watch that tells who runs the coordinator; what follows from that is
// decided by election.h. The coordinator's state is in etcd before anything that follows from it is sent, so
// when its agent is gone, or cut off from etcd, the next one goes on with the generation and the budget as
// they were. Owned by the launcher's rendezvous; one loop; events come from the loop, never after the
// destructor. Failure, by the callbacks: a coordinator that cannot be reached in time; an etcd that will
// never answer, or has not for connect_timeout, and later for reconnect_timeout, in which it is tried with
// back-off.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "rendezvous/agent_client/address_race.h"
#include "rendezvous/agent_client/coordinator_host.h"
#include "rendezvous/base/backoff.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/election.h"
#include "rendezvous/etcd/state_log.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::etcd {

/// What an agent needs for a job over etcd.
struct Options {
  Settings etcd;
  std::string job;
  Endpoint self;            ///< this host's name, and the addresses at which the others may try to reach it
  std::string own_address;  ///< where this agent reaches a coordinator of its own
  std::function<Result<net::Listener>()> listen;
  /// A node's addresses in the order in which they are to be tried from here.
  std::function<std::vector<std::string>(const std::vector<std::string>&)> sort_addresses;
  std::optional<auth::Secret> secret;
  Millis heartbeat_interval{5'000};
  Millis connect_timeout{60'000};    ///< until etcd, and then the coordinator, answer for the first time
  Millis reconnect_timeout{60'000};  ///< afterwards
};

class Coordinator final : public net::CoordinatorHost {
 public:
  Coordinator(boost::asio::io_context& loop, Options options, const Log& log);
  ~Coordinator() override;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void start(Callbacks callbacks) override;
  [[nodiscard]] bool is_hosting() const override { return server_ != nullptr; }
  [[nodiscard]] bool survives_exit() const override { return true; }
  [[nodiscard]] std::string host() const override { return host_; }
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  /// Before it is located: etcd's members.
  [[nodiscard]] std::string title() const override;
  [[nodiscard]] membership::NodeId node() const override { return node_; }
  void set_joined() override;
  /// A job that goes on is handed over at once.
  void drain(Millis timeout, std::function<void()> done) override;

 private:
  void look();
  void read();
  void on_read(const TxnResponse& found);
  void campaign(Revision former);
  void on_campaign(const TxnResponse& response);
  [[nodiscard]] bool waits_for_leases(const TxnResponse& response);
  void looked(const Result<Revision>& revision);
  void look_later();
  void watch(Revision from);
  void on_update(const WatchUpdate& update);

  void start_term(Revision term, const std::vector<KeyValue>& state, const std::vector<KeyValue>& nodes);
  void serve(const RecoveredJob& job);
  void depose(const std::string& why);
  void wait_absences();

  void follow(const KeyValue& coordinator);
  void race();
  void locate(std::string host, std::uint16_t port);

  void wait_lease(Instant renew_at);
  void renew();
  void lose_lease();
  [[nodiscard]] bool lease_trusted() const { return lease_ != 0 && !lease_doubtful_; }

  void on_answer();
  void on_failure(const Error& error);
  void lose_etcd(const Error& error);
  void end(const Error& error);

  void leave_soon();
  void leave_if_empty();
  void leave();
  void give_lease_back();
  void finish_leaving();

  boost::asio::io_context& loop_;
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

}  // namespace muster::etcd
