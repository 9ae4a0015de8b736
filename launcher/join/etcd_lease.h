// SPDX-License-Identifier: Apache-2.0
// EtcdLease: this agent's lease in etcd, renewed each third of its time. Its keys are there as long as it is.
// Owned by EtcdSession; kept alive by its own operations; one loop. Failure: etcd does not know the lease any
// more (ended), or was not heard in time (doubtful): by this agent's clock, counted from before etcd counts,
// so that whoever relies on the lease stops before another can be elected.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "rendezvous/etcd/etcd_client.h"
#include "rendezvous/etcd/etcd_election.h"

namespace muster::launcher {

/// Of a client on whose answers a lease depends.
[[nodiscard]] net::EtcdClientOptions client_options(const EtcdSettings& settings);

class EtcdLease : public std::enable_shared_from_this<EtcdLease> {
 public:
  struct Callbacks {
    std::function<void()> ended;
    std::function<void()> doubtful;
    std::function<void()> trusted;  ///< doubtful no more: etcd has it still
    std::function<void()> renewed;  ///< each time
    std::function<void(const Error&)> failed;
  };
  EtcdLease(boost::asio::io_context& io, net::EtcdClient& client, std::int64_t ttl_seconds,
            Callbacks callbacks);

  /// 0: there is none.
  [[nodiscard]] etcd::LeaseId id() const { return id_; }
  /// There is one, and by this agent's clock etcd has it too.
  [[nodiscard]] bool trusted() const { return id_ != 0 && !doubtful_; }
  boost::asio::awaitable<Result<void>> grant();
  /// As long as there is this lease.
  boost::asio::awaitable<void> keep();
  /// Etcd is known to have ended it.
  void forget();
  /// No callback comes after it.
  void close();

 private:
  void arm();

  net::EtcdClient& client_;
  std::int64_t ttl_seconds_;
  Callbacks callbacks_;
  boost::asio::steady_timer renewal_;
  boost::asio::steady_timer end_;
  etcd::LeaseId id_ = 0;
  etcd::LeaseClock clock_;
  bool doubtful_ = false;
};

}  // namespace muster::launcher
