// SPDX-License-Identifier: Apache-2.0
// EtcdPatience: for how long an etcd that does not answer is tried, and what is said meanwhile: nothing about
// a connection that ends and comes back, one line about an etcd that stays away, one when it is back. Owned
// by EtcdSession; one loop. Failure: `over`, once, when it has lasted too long or will never be otherwise.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class EtcdPatience {
 public:
  struct Limits {
    Millis first;  ///< until it answers for the first time
    Millis later;
  };
  /// `etcd`: its members, for people.
  EtcdPatience(boost::asio::io_context& io, std::string etcd, const Limits& limits, const Log& log,
               std::function<void(const Error&)> over);
  ~EtcdPatience();
  EtcdPatience(const EtcdPatience&) = delete;
  EtcdPatience& operator=(const EtcdPatience&) = delete;

  void answered();
  void failed(const Error& error);
  void stop();

 private:
  void run_out();

  std::string etcd_;
  Limits limits_;
  const Log& log_;
  std::function<void(const Error&)> over_;
  boost::asio::steady_timer timer_;
  bool ever_answered_ = false;
  std::optional<Instant> since_;  // it does not answer
  std::string last_error_;
  bool said_ = false;
  std::shared_ptr<bool> alive_;  // for the timer's handler
};

}  // namespace muster::launcher
