// SPDX-License-Identifier: Apache-2.0
// ControlClient: an agent's one connection to its job's coordinator, on the agent's event loop. It finds the
// coordinator with back-off, authenticates both ways, joins, sends heartbeats, and reconnects where allowed.
// Owned by the launcher's agent. One loop, one thread: create, call and destroy it on the loop's thread; the
// loop outlives it. Failure: told once, through ControlEvents::lost, with a code and a text for people.
//
// How an agent uses it:
//   start()            -> Waiting*    -> assigned(a)        start the workers of generation a
//                                     -> closed(), lost()   give up
//   while they run:    -> generation_over(g): stop them, then ready(g) -> Waiting* -> assigned(next)
//                      -> closed(c): stop them; the job is over, c.cause says why (kSucceeded: all is well)
//                      -> lost(e): stop them; there is no coordinator any more
//   a worker failed:   WorkerFailed, and expect generation_over or closed, as everybody else
//   all succeeded:     Finished, and expect closed (success), or generation_over if others fail
//   at the end:        leave(reason, left) and destroy it in or after left()
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/agent_client/control_target.h"
#include "rendezvous/coordinator/membership.h"
#include "rendezvous/protocol/clock_offset.h"
#include "rendezvous/protocol/control.h"

namespace muster::net {

/// `own_host` is that of the request.
struct ControlClientOptions : ControlTarget {
  /// Who this node is. An id of zeros is replaced by a random one; master_port is that of the first world.
  membership::Request request;
  membership::Settings settings;
  std::string software = "muster";
  Millis connect_timeout{60'000};  ///< from start() until the coordinator welcomes this agent, over all tries
  Millis attempt_timeout{5'000};   ///< one try: name, connection, authentication
  /// A connection that breaks later is tried again for so long, or longer where the coordinator says that it
  /// keeps its agents' places; 0: lost at once, but for settings.reconnect_grace where neither side ended it.
  Millis reconnect_for{0};
  /// A coordinator that is silent for so many heartbeat intervals, and for settings.heartbeat_timeout, is
  /// lost.
  int missed_heartbeats = 3;
  bool compare_clocks = false;        ///< once, after joining; see ControlEvents::clock
  Instant born = SteadyClock::now();  ///< since when the agent has been running
};

/// All optional. Called from the loop, never from within a call of the client, each only while the client
/// lives and before close(). After closed() or lost() nothing more comes, but a Report may.
struct ControlEvents {
  /// A world of which this node is a part: its ranks, and where the first node serves the workers' store.
  /// One per generation.
  std::function<void(const control::Assignment&)> assigned;
  /// The workers of this generation are to be stopped. One per generation.
  std::function<void(const control::GenerationOver&)> generation_over;
  std::function<void(const control::Closed&)> closed;
  /// A try to connect failed and another follows; when the text changes.
  std::function<void(const Error&)> trying;
  /// What else the coordinator says: Waiting, when the reason for it changes, at most about once a second;
  /// Report, other nodes' parts of the job's report, to the first node of the world; Hang, Status and
  /// StopWorkers of other nodes, in the generation that runs here; SafePointPassed; Notice; and messages
  /// about the workers' store (control::is_about_store).
  std::function<void(const control::Message&)> message;
  /// A connection to the coordinator is there, and the agent has joined by it; or it broke.
  std::function<void(bool there)> linked;
  /// How far the coordinator's wall clock is from this host's.
  std::function<void(const ClockOffset&)> clock;
  /// The connection has taken everything that was sent.
  std::function<void()> drained;
  /// kTimeout: not reached within connect_timeout. kMismatch: refused for its secret, version or settings.
  /// kExhausted: a limit of the coordinator. kCancelled: the job was over, or the coordinator stops.
  /// kPeerGone: the connection broke, or the coordinator gave this node up.
  std::function<void(const Error&)> lost;
};

class ControlClient {
 public:
  ControlClient(boost::asio::io_context& loop, ControlClientOptions options, ControlEvents events);
  /// close()s.
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  /// Begins to connect and join. Once.
  void start();

  /// The coordinator is there now. A connection to another place is given up, and this one tried at once.
  void redirect(std::string host, std::uint16_t port);

  /// The workers of `generation` are gone; this node takes part in the next round and would serve its store
  /// on `master_port`. `reached`: by them.
  void ready(std::int64_t generation, std::uint16_t master_port, const StepProgress& reached = {});
  /// StopWorkers when a worker failed, before what is known of it; SafePoint, where the generation can be
  /// interrupted for nodes that wait (Settings::grow_at_safe_point); Report, Hang, Status. Lost where there
  /// is no connection.
  void send(const control::Message& message);
  /// WorkerFailed; Finished when all workers of this node succeeded; Stop. Kept and said again after a
  /// reconnection until the generation is over.
  void send_until_over(const control::Message& fact);
  /// A message about the workers' store; lost where there is no connection.
  void send_store(const control::Message& message);
  /// What the connection has not taken yet.
  [[nodiscard]] std::size_t unsent_bytes() const;
  /// Tells the coordinator that this node leaves; `left` comes when the coordinator has read it, or after
  /// `timeout`. A coordinator that is away and keeps its agents' places is looked for meanwhile, for some
  /// seconds. No event comes after this call.
  void leave(std::string reason, Millis timeout, std::function<void()> left);
  /// Drops the connection without a message: the coordinator takes this node for lost.
  void close();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace muster::net
