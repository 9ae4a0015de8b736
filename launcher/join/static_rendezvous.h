// SPDX-License-Identifier: Apache-2.0
// StaticRendezvous: a fixed number of nodes that find each other at node 0's address, where node 0 serves the
// store. Agents write below "/<run id>/": node/<g> (who claims node rank g), and for each attempt
// role_info/<g>, assigned_ranks/<g>, MASTER_PORT and news (node_news.h). Workers of attempt 0 use the same
// server, as with torchrun; each restart gets a new one. While nodes are missing it says every few seconds
// which; after --rdzv-conf timeout= it gives up and names them. Source:
// torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py, agent/server/api.py (_assign_worker_ranks).
#pragma once

#include <memory>

#include <boost/asio/io_context.hpp>

#include "launcher/job/rendezvous.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class StaticRendezvous final : public Rendezvous {
 public:
  StaticRendezvous(boost::asio::io_context& io, const Job& job, const Log& log);
  ~StaticRendezvous() override;

  void join(int attempt, Joined joined) override;
  void watch(int attempt, OutcomeKnown known) override;
  void announce(int attempt, const FailureNotice& notice) override;
  void succeeded(int attempt) override;
  void send_report(int attempt, std::string part) override;
  void gather_reports(int attempt, PartCame came) override;
  void say_hang(int attempt, control::Hang word) override;
  void hear_hangs(int attempt, HangHeard heard) override;
  void decline(int attempt, const FailureNotice& notice) override;
  void leave(Millis patience, std::function<void()> left) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with its coroutines
};

}  // namespace muster::launcher
