// SPDX-License-Identifier: Apache-2.0
// StandaloneRendezvous: one node. Every attempt gets a new store on a loopback port, the given one or one of
// the kernel's choice, so that a restarted worker never meets keys of the attempt before.
#pragma once

#include <memory>

#include <boost/asio/io_context.hpp>

#include "launcher/job/rendezvous.h"
#include "rendezvous/base/log.h"
#include "rendezvous/server/server.h"

namespace muster::launcher {

class StandaloneRendezvous final : public Rendezvous {
 public:
  StandaloneRendezvous(boost::asio::io_context& io, const Job& job, const Log& log);

  void join(int attempt, Joined joined) override;
  void watch(int attempt, OutcomeKnown known) override;
  void announce(int attempt, const FailureNotice& notice) override;
  void succeeded(int attempt) override;
  void decline(int attempt, const FailureNotice& notice) override;
  void leave(Millis patience, std::function<void()> left) override;

 private:
  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::unique_ptr<net::Server> server_;
  OutcomeKnown known_;
};

}  // namespace muster::launcher
