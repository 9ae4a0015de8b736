// SPDX-License-Identifier: Apache-2.0
// musterctl top and musterctl open: a job's live view, by the status page that its first agent serves
// (--metrics-addr), as lines or on a terminal (top_screen.cc); and the tunnel by which a browser elsewhere
// reaches that page. Blocks; called by musterctl's main. Failure is one line and an exit status as of
// jobs_command.h.
#pragma once

#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>

#include <muster/result.h>

#include "launcher/ctl/jobs_command.h"
#include "launcher/process/job_record.h"

namespace muster::launcher {

struct TopCommand {
  JobsCommand coordinator;  ///< its `job` names a detached job where there is no endpoint
  std::string url;
  double interval_s = 1;
  int count = -1;  ///< so many times as lines; 0: until interrupted; -1: a screen on a terminal, else lines
  bool lines_forever = false;  ///< where there is no screen: as with count 0, not 1
};

/// Where a job's page is.
struct JobPage {
  std::string host;  ///< as given to ssh
  std::string address;
  std::uint16_t port = 0;
  std::string token;  ///< empty: nothing is asked for
};

/// `record`: of the detached job that is meant, where neither a URL nor an endpoint is given.
[[nodiscard]] int run_top(const TopCommand& command, const JobRecord* record, const Environment& environment);
[[nodiscard]] int run_open(const TopCommand& command, const JobRecord* record,
                           const Environment& environment);

/// On a terminal. The exit status; nothing: this is no terminal that a screen can be drawn on (TERM).
[[nodiscard]] std::optional<int> run_screen(const JobPage& page, Millis interval);

/// GET: the body of an answer with status 200, of 8 MiB at most. kTimeout, kPeerGone: not reached;
/// kMismatch: refused; kProtocol: another answer.
boost::asio::awaitable<Result<std::string>> get(JobPage page, std::string path, Instant deadline);

}  // namespace muster::launcher
