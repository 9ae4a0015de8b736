// SPDX-License-Identifier: Apache-2.0
// JobSecretFiles: the secrets of single jobs, read from their files at the start and again at each SIGHUP.
// Owned by musterd's main; one loop, one thread. Failure: at the start it says which file is wrong; later it
// logs that, and what was read before still holds.
#pragma once

#include <memory>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "rendezvous/base/log.h"
#include "rendezvous/protocol/job_secrets.h"

namespace muster::net {

class JobSecretFiles {
 public:
  JobSecretFiles(boost::asio::io_context& loop, const Log& log, JobSecrets::Sources sources);

  /// Once. nullptr: there are no sources, and SIGHUP ends the process as ever.
  [[nodiscard]] Result<std::shared_ptr<JobSecrets>> open();
  /// Keeps the loop busy no more.
  void stop() { hang_up_.cancel(); }

 private:
  void wait();

  boost::asio::signal_set hang_up_;
  const Log& log_;
  JobSecrets::Sources sources_;
  std::shared_ptr<JobSecrets> secrets_;
};

}  // namespace muster::net
