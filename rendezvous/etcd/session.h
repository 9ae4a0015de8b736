// SPDX-License-Identifier: Apache-2.0
// etcd::Session: one agent in etcd: its lease, its node's key, its campaigns to run the job's coordinator,
// and the watch that tells who runs it. While this agent runs it, also which nodes' leases have ended, and
// the state for the next coordinator. What to do is decided by election.h. Owned by Coordinator; one loop.
// Failure: an etcd that does not answer is tried with back-off, first for connect_timeout and later for
// reconnect_timeout; then, or when it will never answer, Events::lost.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "rendezvous/base/backoff.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/election.h"
#include "rendezvous/etcd/state_log.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/protocol/auth.h"

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

class Session {
 public:
  struct Events {
    /// Before a campaign: where the coordinator would listen.
    std::function<Result<Endpoint>()> listen;
    /// This agent runs the coordinator, at the endpoint of listen(), with its state in the log.
    std::function<void(const RecoveredJob&, std::shared_ptr<JobStateLog>)> elected;
    /// It does not any more.
    std::function<void(const std::string& why)> deposed;
    /// The agent at this endpoint does.
    std::function<void(const Endpoint&)> follow;
    /// While it runs the coordinator: a node's lease has ended.
    std::function<void(const membership::NodeId&)> absent;
    /// Once; the session is over.
    std::function<void(const Error&)> lost;
  };

  /// `options` outlive it. `node`: the id of this agent.
  Session(boost::asio::io_context& loop, const Options& options, const membership::NodeId& node,
          Events events, const Log& log);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void start() { look(); }
  /// A coordinator has accepted this node.
  void set_joined();
  /// Waits for what is being written, then gives the lease back, which ends this agent's term. `left` comes
  /// after `timeout` at the latest; no event comes after the call.
  void leave(Millis timeout, std::function<void()> left);

 private:
  void look();
  void read();
  void on_read(const TxnResponse& found);
  void campaign(Revision former);
  void on_campaign(const TxnResponse& response);
  void looked(const Result<Revision>& revision);
  void look_later();
  void watch(Revision from);
  void on_update(const WatchUpdate& update);
  void start_term(Revision term, const std::vector<KeyValue>& state, const std::vector<KeyValue>& nodes);
  void depose(const std::string& why);
  void follow(const KeyValue& coordinator);
  void wait_absences();

  void wait_lease(Instant renew_at);
  void renew();
  void lose_lease();
  [[nodiscard]] bool lease_trusted() const { return lease_ != 0 && !lease_doubtful_; }

  void on_answer();
  void on_failure(const Error& error);
  void end(const Error& error);
  void give_lease_back();
  void finish_leaving();

  boost::asio::io_context& loop_;
  const Options& options_;
  const membership::NodeId node_;
  Endpoint self_;  // what stands in the node's key
  Events events_;
  const Log& log_;
  const JobKeys keys_;
  const std::string members_;  // for messages
  Client client_;

  LeaseId lease_ = 0;
  LeaseClock lease_clock_;
  bool lease_doubtful_ = false;
  Backoff renewal_backoff_;
  LoopTimer renewal_;
  LoopTimer lease_end_;

  bool entered_ = false;  // the node's key is as it should be
  bool looking_ = false;  // requests of look() are under way
  bool stale_ = false;    // what look() finds is not what is
  Backoff backoff_;
  LoopTimer pause_;  // before the next look()

  std::optional<Revision> term_;  // while this agent runs the coordinator
  std::shared_ptr<JobStateLog> state_;
  Presence presence_{Millis(0)};
  LoopTimer absence_;

  bool ever_answered_ = false;
  std::optional<Instant> silent_since_;
  bool silence_logged_ = false;
  std::string last_error_;
  LoopTimer silence_;  // when etcd has been away too long; in leave(), when that takes too long

  bool over_ = false;
  std::function<void()> left_;
  Lifetime lifetime_;
};

}  // namespace muster::etcd
