// SPDX-License-Identifier: Apache-2.0
// GuardianWatch: sees to it that there is a guardian as long as the launcher lives. Whoever kills it (the
// kernel for memory, an administrator) would leave the workers' daemons to nobody, should the launcher be
// killed too. One loop; owned by main. Failure: it is said that there is no guardian, and the job goes on.
#pragma once

#include <functional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "launcher/process/guardian.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class GuardianWatch {
 public:
  static constexpr int kMostReplacements = 100;  // then somebody means it

  /// `replaced` is called with the number of each new guardian.
  GuardianWatch(boost::asio::io_context& io, Guardian& guardian, const Log& log,
                std::function<void(pid_t)> replaced);

 private:
  void watch();
  void on_end();

  Guardian& guardian_;
  const Log& log_;
  std::function<void(pid_t)> replaced_;
  boost::asio::posix::stream_descriptor pidfd_;
  int replacements_ = 0;
};

}  // namespace muster::launcher
