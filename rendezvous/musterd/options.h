// SPDX-License-Identifier: Apache-2.0
// musterd's command line: from argv to what main hands to the servers. What options.cc binds is the one
// truth of names, defaults and meanings: `musterd --help` is made of it, and rendezvous/reference.md, which
// scripts/lint compares. Secrets are read by main, never from the command line. Failure: an exit code, after
// the error or the help has been printed.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "rendezvous/base/log.h"
#include "rendezvous/protocol/job_secrets.h"
#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/wal/state_log.h"

namespace muster {

struct MusterdOptions {
  net::RendezvousServerOptions server;
  net::StateLogOptions state;
  std::string secret_file;
  JobSecrets::Sources job_secrets;
  tls::Files tls;
  std::string port_file;
  std::string metrics_addr;
  LogLevel log_level = LogLevel::kInfo;
};

/// Or the exit code: 0 after --help and --version, 2 for wrong arguments.
[[nodiscard]] tl::expected<MusterdOptions, int> parse_options(int argc, char** argv);

inline constexpr int kExitUsage = 2;

/// "musterd: text" on standard error. Returns the exit code.
int complain(std::string_view text, int exit_code = 1);

}  // namespace muster
