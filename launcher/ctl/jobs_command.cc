// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/jobs_command.h"

#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/ctl/jobs_text.h"
#include "launcher/job/exit_status.h"
#include "launcher/plan/rendezvous_plan.h"

namespace muster::launcher {
namespace {

constexpr int kExitNoSuchJob = 1;
constexpr int kMusterPort = 29500;  // musterd's

Result<net::QueryOptions> question(const JobsCommand& command, const Environment& environment) {
  auto endpoint = parse_endpoint(command.endpoint);
  if (!endpoint || endpoint->host.empty() || endpoint->port == 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--endpoint={} is not HOST[:PORT]", command.endpoint));
  net::QueryOptions out;
  out.host = endpoint->host;
  out.port = static_cast<std::uint16_t>(endpoint->port < 0 ? kMusterPort : endpoint->port);
  out.job = command.job;
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) == 0) out.own_host = host;
  out.timeout = Millis(static_cast<std::int64_t>(command.timeout_s * 1000));
  MUSTER_TRY(out.secret, auth::find_secret(command.secret_file, environment));
  const tls::Files& files = command.tls;
  if (files.ca.empty() && !(files.cert.empty() && files.key.empty()))
    return fail(ErrorCode::kInvalidArgument,
                "--tls-cert and --tls-key need --tls-ca, by which the coordinator is known");
  if (!files.ca.empty()) {
    MUSTER_TRY(out.tls, tls::Context::client(files));
  }
  return out;
}

}  // namespace

int show_jobs(const JobsCommand& command, const Environment& environment) {
  const auto asked = question(command, environment);
  if (!asked) return complain(asked.error().message, kExitUsage);
  const auto answer = net::query(*asked);
  if (!answer)
    return complain(answer.error().message,
                    answer.error().code == ErrorCode::kMismatch ? kExitRefused : kExitRendezvous);
  const bool missing = !command.job.empty() && answer->jobs.empty();
  if (command.json)
    std::fputs(jobs_json(*answer).c_str(), stdout);
  else if (!missing)
    std::fputs(jobs_text(*answer, command.most_nodes).c_str(), stdout);
  return missing ? complain(fmt::format("{} has no job {}", command.endpoint, command.job), kExitNoSuchJob)
                 : kExitOk;
}

}  // namespace muster::launcher
