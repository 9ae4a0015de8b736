// SPDX-License-Identifier: Apache-2.0
// Clock exchange: the agents of a job with static rendezvous compare their clocks with node 0's, through its
// store: a node puts a question of its own name into a queue ("clock/asks"), and finds node 0's two time
// stamps under it ("clock/answer/<name>"). Node 0 takes up whatever is there, so that it waits for nobody in
// particular: each question costs it two requests, and one whose asker has died an entry. On a connection of
// its own, beside the rendezvous; nobody waits for it, and an asker has 10 s in all. A clock that differs
// (clock_offset.h) is said by the node that has it. One loop; owned by StaticRendezvous. Failure: nothing is
// said; who cannot reach node 0 has other things to say.
#pragma once

#include "launcher/job/job.h"
#include "launcher/join/agent_link.h"
#include "launcher/join/first_node.h"
#include "rendezvous/base/log.h"
#include "rendezvous/protocol/clock_offset.h"

namespace muster::launcher {

class ClockExchange {
 public:
  ClockExchange(boost::asio::io_context& io, const Job& job, const Log& log);

  /// Node 0 answers until close(); another asks.
  Awaitable<Result<void>> run(FirstNode first);
  void close() { link_.close(); }
  /// What the exchanges say so far.
  [[nodiscard]] const ClockEstimate& estimate() const { return estimate_; }

 private:
  Awaitable<Result<void>> answer();
  Awaitable<Result<void>> ask(int number, Instant deadline);
  [[nodiscard]] std::string key(std::string_view name) const;

  const Job& job_;
  const Log& log_;
  AgentLink link_;
  ClockEstimate estimate_;
};

}  // namespace muster::launcher
