// SPDX-License-Identifier: Apache-2.0
// The commands of musterctl: ls and status look at a job's record, jobs asks a coordinator, top and open a
// job's status page, gpus the driver. They block; main calls them. Failure is one line and an exit status: 1:
// there is no such job; 2: wrong arguments; 4: something still runs; 69: the coordinator or the page was not
// reached; 78: it refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>

#include <muster/result.h>

#include "launcher/process/job_record.h"
#include "rendezvous/agent_client/query_client.h"
#include "rendezvous/base/env.h"
#include "rendezvous/net/tls.h"

namespace muster::launcher {

inline constexpr int kExitNoSuchJob = 1;
inline constexpr int kExitStillRuns = 4;
/// Prints an error of musterctl. Returns `status`.
int complain(std::string_view text, int status);

// musterctl ls and status: of a detached job its record, and of each of its ranks what /proc and its line
// about progress show at this moment. What cannot be read is left out.

/// Several lines. `now`: seconds since the epoch.
[[nodiscard]] std::string status_text(const JobRecord& entry, std::int64_t now);
/// The entry, with what is seen of its ranks.
[[nodiscard]] std::string status_json(const JobRecord& entry);

/// "running", "lost", "ended 7"
[[nodiscard]] std::string state_of(const JobRecord& entry);
/// "812 MiB", "23 GiB"
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// "17s", "5h"
[[nodiscard]] std::string age_of(std::int64_t since, std::int64_t now);
[[nodiscard]] std::string command_of(const JobRecord& entry);

// musterctl jobs: what a musterd, or a coordinator that an agent embeds, has.

struct JobsCommand {
  std::string endpoint;
  std::string job;  ///< empty: all
  std::string secret_file;
  tls::Files tls;
  bool json = false;
  double timeout_s = 10;
};

/// kInvalidArgument: what does not fit together.
[[nodiscard]] Result<net::QueryOptions> query_options(const JobsCommand& command,
                                                      const Environment& environment);
[[nodiscard]] int show_jobs(const JobsCommand& command, const Environment& environment);

// Jobs text: what musterctl jobs prints of a coordinator's answer (rendezvous/protocol/control.h), for people
// and as JSON. Pure; for ctl/ alone. The texts in an answer came over a network: none steers a terminal.
// Nothing here fails.

/// A line for each job, and for each node of a job that was asked for.
[[nodiscard]] std::string jobs_text(const net::QueryAnswer& answer);
/// One object: jobs, nodes and the count of jobs.
[[nodiscard]] std::string jobs_json(const net::QueryAnswer& answer);

// musterctl gpus: which processes use the GPUs of this host (report/gpu_holders.h), as a table or JSON, and
// with --free the end of those of the caller that a dead agent left behind. Some seconds at most where the
// driver does not answer: then processes are known by the device files that they have open.

struct GpusCommand {
  bool json = false;
  bool free = false;
};

[[nodiscard]] int show_gpus(const GpusCommand& command, const Environment& environment);

// musterctl top and musterctl open: a job's live view, by the status page that its first agent serves
// (--metrics-addr), as lines or on a terminal (top_screen.cc); and the tunnel by which a browser elsewhere
// reaches that page.

struct TopCommand {
  JobsCommand coordinator;  ///< its `job` names a detached job where there is no endpoint
  std::string url;
  double interval_s = 1;
  bool screen = true;  ///< where there is a terminal
  int count = 1;       ///< else so many times as lines; 0: until interrupted
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
