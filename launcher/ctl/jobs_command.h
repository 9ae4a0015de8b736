// SPDX-License-Identifier: Apache-2.0
// musterctl jobs: what a musterd, or a coordinator that an agent embeds, has. Blocks; called by musterctl's
// main. Returns its exit status: 1: there is no such job; 2: wrong arguments; 69: the coordinator was not
// reached; 78: it refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "rendezvous/base/env.h"
#include "rendezvous/net/tls.h"

namespace muster::launcher {

/// Prints an error of musterctl. Returns `status`.
int complain(std::string_view text, int status);

struct JobsCommand {
  std::string endpoint;
  std::string job;  ///< empty: all
  std::string secret_file;
  tls::Files tls;
  bool json = false;
  std::size_t most_nodes = 100;  ///< of the text; 0: all
  double timeout_s = 10;
};

[[nodiscard]] int show_jobs(const JobsCommand& command, const Environment& environment);

}  // namespace muster::launcher
