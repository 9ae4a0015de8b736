// SPDX-License-Identifier: Apache-2.0
// EtcdSession: this agent in etcd: its lease, its node's key, its campaigns to run the job's coordinator, and
// the watch that tells who does; for the coordinator also whose lease is over, and the state for the next
// one. What is to be done is decided in rendezvous/etcd/etcd_election.h. Owned by EtcdSeat; one loop.
// Failure: an etcd that does not answer is tried with back-off, first for connect_timeout and later for
// reconnect_for; then, or when it will never answer, Events::lost.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "rendezvous/base/log.h"
#include "rendezvous/etcd/etcd_election.h"

namespace muster::launcher {

class EtcdSession {
 public:
  struct Events {
    /// Before a campaign: where the coordinator would listen.
    std::function<Result<etcd::Place>()> open;
    /// This agent runs the coordinator, at the place of open().
    std::function<void(etcd::Inheritance)> elected;
    /// It does not any more.
    std::function<void(const std::string& why)> deposed;
    /// The agent of this place does.
    std::function<void(const etcd::Place&)> follow;
    /// While it runs the coordinator: a node's lease is over.
    std::function<void(const membership::NodeId&)> absent;
    std::function<void(const Error&)> lost;
  };

  /// `self`: what stands in the node's key.
  EtcdSession(boost::asio::io_context& io, const Job& job, const membership::NodeId& node, etcd::Place self,
              Events events, const Log& log);
  ~EtcdSession();
  EtcdSession(const EtcdSession&) = delete;
  EtcdSession& operator=(const EtcdSession&) = delete;

  void start();

  /// In this agent's term: `state` for the next coordinator (nothing: there is none to go on with). `written`
  /// comes only if it is written while the term lasts.
  void write(const std::optional<JobRecord>& state, std::function<void()> written);
  /// A coordinator has spoken to this node.
  void welcomed();

  /// What is being written is waited for, then the lease is given back, which ends this agent's term. `left`
  /// comes after `patience` at the latest; no event comes after the call.
  void leave(Millis patience, std::function<void()> left);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace muster::launcher
