// SPDX-License-Identifier: Apache-2.0
// EtcdStateWriter: a coordinator's state on its way into etcd, in its term and no longer: each write is a
// transaction that fails when the coordinator's key is not the one of that term. One at a time, always of the
// latest state; it is tried again until it is written or the term ends, and twice does no harm. The state has
// a lease of its own, longer than an agent's, so that it survives its writer and yet does not stay for ever.
// Owned by EtcdSession; kept alive by its own operations; one loop. Failure: told through the callbacks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "rendezvous/etcd/etcd_client.h"
#include "rendezvous/etcd/etcd_election.h"

namespace muster::launcher {

class EtcdStateWriter : public std::enable_shared_from_this<EtcdStateWriter> {
 public:
  struct Callbacks {
    std::function<void()> overtaken;             ///< the term is over
    std::function<void(const Error&)> failed;    ///< it is tried again
    std::function<void(const Error&)> hopeless;  ///< it is not
  };
  EtcdStateWriter(boost::asio::io_context& io, net::EtcdClient& client, etcd::JobKeys keys,
                  Callbacks callbacks);

  void begin(etcd::Revision term);
  /// Nothing more is written, or told, of the term.
  void end();
  /// No callback comes after it.
  void close();

  using State = std::optional<JobRecord>;  ///< nothing: it is removed
  /// `written` comes only within the term, when this state or a later one is written.
  boost::asio::awaitable<void> write(State state, std::function<void()> written);
  /// To be called more often than once in kRenewal.
  boost::asio::awaitable<void> keep_alive();
  /// What was written last in this term is gone from etcd, with its lease: it is written again.
  boost::asio::awaitable<void> restore();

  /// Nothing is being written any more; at once, or later. Once.
  void when_idle(std::function<void()> idle);

 private:
  boost::asio::awaitable<void> run();
  boost::asio::awaitable<Result<bool>> write_once(etcd::Revision term);

  net::EtcdClient& client_;
  etcd::JobKeys keys_;
  Callbacks callbacks_;
  boost::asio::steady_timer pause_;
  std::optional<etcd::Revision> term_;
  etcd::LeaseId lease_ = 0;
  State latest_;      // of this term
  bool due_ = false;  // it may not be in etcd
  bool running_ = false;
  std::vector<std::function<void()>> waiting_;
  Instant renewal_{};
  std::function<void()> idle_;
};

}  // namespace muster::launcher
