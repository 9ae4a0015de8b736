// SPDX-License-Identifier: Apache-2.0
// EtcdClient: calls and a watch over HTTP connections to one of several etcd members, for coroutines of one
// loop. A call goes to the member that answered last, then to each of the others; connections are kept for
// the next call, and what a member does not answer in call_timeout is tried elsewhere. Whoever calls tries
// again later: an etcd that is being started anew is away for seconds. Every call here may be said twice.
// Owned by the launcher's EtcdSeat; one loop, one thread. Failure: the error of the last member that was
// tried, with its address; close() ends what is under way with kCancelled.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "rendezvous/net/tls.h"

namespace muster::net {

struct EtcdClientOptions {
  struct Member {
    std::string host;
    std::uint16_t port = 0;
  };
  std::vector<Member> members;  ///< at least one
  std::optional<tls::Context> tls;
  Millis call_timeout{3'000};  ///< of one member: name, connection, answer
  /// Of an answer, and of an update of a watch. etcd takes requests of 1.5 MiB unless it is told otherwise.
  std::size_t max_answer_bytes = std::size_t{16} << 20;
};

class EtcdClient {
 public:
  EtcdClient(boost::asio::io_context& loop, EtcdClientOptions options);
  /// close()s.
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  template <class T>
  using Answer = boost::asio::awaitable<Result<T>>;
  [[nodiscard]] Answer<etcd::Lease> grant(std::int64_t ttl_seconds);
  /// What is left of it, in seconds; 0: etcd does not know it.
  [[nodiscard]] Answer<std::int64_t> keep_alive(etcd::LeaseId lease);
  [[nodiscard]] Answer<void> revoke(etcd::LeaseId lease);
  [[nodiscard]] Answer<etcd::TxnAnswer> txn(etcd::Txn txn);

  struct Watch {
    std::string key;
    std::string end;  ///< empty: `key` alone
    etcd::Revision from = 0;
    /// A connection that has died without a word is noticed in about this time: the kernel probes it.
    Millis probe{10'000};
    /// False: it has heard enough.
    std::function<bool(const etcd::WatchUpdate&)> heard;
  };
  /// Until `heard` has enough, which is kCancelled, or interrupt_watch() says so, or it breaks: also when its
  /// member has lost its cluster, or a call has found another member to be the better one. One at a time.
  [[nodiscard]] boost::asio::awaitable<Error> watch(Watch watch);
  void interrupt_watch();

  void close();

  /// The members, for people.
  [[nodiscard]] const std::string& title() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace muster::net
