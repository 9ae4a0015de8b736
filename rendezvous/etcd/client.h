// SPDX-License-Identifier: Apache-2.0
// etcd::Client: requests to one of several etcd members, and one watch, over HTTP connections (Boost.Beast).
// A request goes to the member that answered last, then to each of the others; connections are kept for the
// next request. Every request may reach etcd twice. Owned by Session; one loop, one thread; callbacks come
// from the loop and never after the destructor. Failure: the error of the last member that was tried, with
// its address; the caller tries again later, since an etcd that restarts is away for seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/etcd/messages.h"
#include "rendezvous/etcd/settings.h"

namespace boost::asio {
class io_context;
}

namespace muster::etcd {

/// "host:port,host:port", for messages.
[[nodiscard]] std::string member_list(const Settings& settings);

class Client {
 public:
  Client(boost::asio::io_context& loop, const Settings& settings);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  template <class T>
  using Done = std::function<void(Result<T>)>;
  void grant(std::int64_t ttl_seconds, Done<Lease> done);
  /// Answers the seconds that the lease has left; 0: etcd does not know the lease.
  void keep_alive(LeaseId lease, Done<std::int64_t> done);
  void revoke(LeaseId lease, Done<void> done);
  void txn(const Txn& txn, Done<TxnResponse> done);

  struct Watch {
    std::string key;
    std::string end;  ///< empty: `key` alone
    Revision from = 0;
    Millis probe_timeout{10'000};  ///< the kernel notices within about this time that a silent member is gone
    std::function<void(const WatchUpdate&)> on_update;
    /// Once, unless stop_watch() came first. Also when the member has lost its cluster, or when a request has
    /// found that another member answers better.
    std::function<void(const Error&)> on_end;
  };
  /// Replaces the watch before it.
  void watch(Watch watch);
  void stop_watch();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace muster::etcd
