// SPDX-License-Identifier: Apache-2.0
// StoreProxy: a TCPStore server on 127.0.0.1 for the workers of one node and one generation. It sends their
// requests over the agent's control connection (RequestForwarder). Owned by the launcher's rendezvous. One
// loop, one thread; the loop outlives it. It keeps the loop busy until it is destroyed. Failure: a worker
// that breaks the protocol is closed and logged; the coordinator's "no" comes out of receive().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/base/log.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/proxy/request_forwarder.h"

namespace muster::net {

class StoreProxy {
 public:
  /// The control connection, as the proxy uses it.
  struct Uplink {
    std::function<void(const control::Message&)> send;
    std::function<std::size_t()> unsent_bytes;
  };

  /// Listens before it returns; workers are accepted, and answered once the store is there. `own_user_only`:
  /// workers run as this process's user; others but root are closed.
  [[nodiscard]] static Result<std::unique_ptr<StoreProxy>> listen(boost::asio::io_context& loop,
                                                                  std::int64_t generation, Uplink uplink,
                                                                  bool own_user_only, const Log& log);
  /// Closes every connection. Does not block; the loop drains by itself.
  virtual ~StoreProxy() = default;

  [[nodiscard]] virtual std::uint16_t port() const = 0;

  // ControlEvents.
  virtual void linked(bool there) = 0;
  [[nodiscard]] virtual Result<void> receive(const control::Message& message) = 0;
  virtual void drained() = 0;

  /// The coordinator has the store: workers can be started.
  [[nodiscard]] bool attached() const { return requests().attached(); }
  [[nodiscard]] virtual const RequestForwarder& requests() const = 0;
};

}  // namespace muster::net
