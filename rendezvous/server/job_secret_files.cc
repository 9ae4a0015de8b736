// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/job_secret_files.h"

#include <signal.h>
#include <utility>

#include <fmt/format.h>

namespace muster::net {

JobSecretFiles::JobSecretFiles(boost::asio::io_context& loop, const Log& log, JobSecrets::Sources sources)
    : hang_up_(loop), log_(log), sources_(std::move(sources)) {}

Result<std::shared_ptr<JobSecrets>> JobSecretFiles::open() {
  if (sources_.empty()) return std::shared_ptr<JobSecrets>();
  MUSTER_TRY(JobSecrets secrets, JobSecrets::read(sources_));
  secrets_ = std::make_shared<JobSecrets>(std::move(secrets));
  log_.info(fmt::format("jobs with a secret of their own: {}", secrets_->size()));
  hang_up_.add(SIGHUP);
  wait();
  return secrets_;
}

void JobSecretFiles::wait() {
  hang_up_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    if (auto secrets = JobSecrets::read(sources_); !secrets) {
      log_.error(fmt::format("SIGHUP: {}; the secrets of jobs are as they were", secrets.error().message));
    } else {
      *secrets_ = *std::move(secrets);
      log_.info(fmt::format("SIGHUP: jobs with a secret of their own: {}", secrets_->size()));
    }
    wait();
  });
}

}  // namespace muster::net
