// SPDX-License-Identifier: Apache-2.0
// ControlServer: the coordinator of any number of jobs on the caller's event loop: the agents' connections,
// their authentication, and Jobs. It does not listen: a net::Server hands it the connections whose first
// byte is the control protocol's (RendezvousServer ties the two), so one port serves stores and agents. One
// loop, one thread; the loop outlives it. Failure: an agent that breaks the protocol, proves nothing in time
// or does not read is closed and logged with its address and the reason; nobody else notices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ts/netfwd.hpp>

#include "rendezvous/base/log.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/net/rejection_log.h"
#include "rendezvous/net/tls.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/protocol/job_secrets.h"
#include "rendezvous/proxy/hosted_stores.h"

namespace muster::net {

class StateLog;

struct ControlServerOptions {
  JobsOptions jobs;
  /// Of the jobs that have none among `job_secrets`; nothing: whoever comes may join them, but see there.
  std::optional<auth::Secret> secret;
  /// Of single jobs, which `secret` does not open. Where this is given, a job with neither is refused, unless
  /// agents have to show certificates.
  std::shared_ptr<JobSecrets> job_secrets = {};
  std::optional<tls::Context> tls;   ///< all agents have to speak TLS
  bool this_host_only = false;       ///< agents of other hosts are told that there is neither secret nor TLS
  Millis handshake_timeout{10'000};  ///< from the first byte to a proof
  Millis heartbeat_interval{5'000};  ///< what agents are told
  std::size_t max_connections = 100'000;
  /// Connections that have proven nothing yet; one more closes the oldest, so that peers who prove nothing
  /// keep no agent out. More than agents that come at the same moment.
  std::size_t max_handshakes = 20'000;
  std::size_t max_unsent_bytes = std::size_t{16} << 20;  ///< of an agent that does not read
  /// Of all agents: unfinished messages and what is not read; the one that goes beyond is closed.
  std::size_t max_buffered_bytes = std::size_t{4} << 30;
  HostedStoresOptions stores;  ///< of the workers whose agents proxy
  std::string software = "muster";
  /// For tests: called on the helper thread before each part of a TLS handshake.
  std::function<void()> before_tls_handshake = {};
  /// Called on the loop after a connection has ended; not from stop().
  std::function<void()> on_close = {};
  /// Called before agents are told of a new generation: the workers of the last one are gone on all nodes.
  std::function<void()> on_generation = {};
  /// Outlives the process what is recorded here; nothing: all jobs end with it.
  std::shared_ptr<StateLog> state;
  /// With `state`: how long the agents of a former process's jobs have to come back.
  Millis restart_grace{60'000};
};

struct ControlServerStats {
  std::uint64_t num_accepted = 0;
  std::uint64_t num_open = 0;
  std::uint64_t num_jobs = 0;
  std::uint64_t num_messages = 0;        ///< received
  std::uint64_t num_stores = 0;          ///< of workers whose agents proxy
  std::uint64_t num_connections = 0;     ///< those workers' connections
  std::uint64_t num_buffered_bytes = 0;  ///< see ControlServerOptions::max_buffered_bytes
  RejectionCounts rejections{};
};

class ControlServer {
 public:
  [[nodiscard]] static std::unique_ptr<ControlServer> make(boost::asio::io_context& loop,
                                                           const ControlServerOptions& options,
                                                           const Log& log);
  /// stop()s.
  virtual ~ControlServer() = default;

  /// Takes over a connected, non-blocking socket. `first_bytes`: what was read from it. `peer`:
  /// "10.0.0.4:1234".
  virtual void accept(UniqueFd fd, std::string_view first_bytes, std::string peer) = 0;

  /// The node is gone for good, as somebody else knows; its connection, if it has one, is closed with `why`.
  virtual void evict_node(std::string_view job, const membership::NodeId& node, const std::string& why) = 0;

  /// Connections that are made from now on are judged by the secrets and the TLS context of these options.
  virtual void set_credentials(const ControlServerOptions& from) = 0;

  /// Tells every agent, closes their connections and forgets the jobs. Does not block.
  virtual void stop() = 0;

  [[nodiscard]] virtual ControlServerStats stats() const = 0;
  [[nodiscard]] virtual const Jobs& jobs() const = 0;
};

}  // namespace muster::net
