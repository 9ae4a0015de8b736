// SPDX-License-Identifier: Apache-2.0
// Dry run of several nodes: they meet as for the job, under a name of their own, tell the first one what each
// would do, and part; it prints the whole job's plan. The meeting is the job's own rendezvous, so that what
// would keep the nodes apart is found, and an unfit node tells the others so. No worker, no log file. One
// loop, one thread; called by main. Failure: what the rendezvous says, and this node's own plan.
#pragma once

#include "launcher/cli/options.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

/// How long a node waits for the others: 30 s, or what --rdzv-conf says.
[[nodiscard]] Millis dry_run_patience(const Options& options, const Job& job);

/// Prints to stdout. Returns the exit status: 0, or what the job would end with before its workers start.
[[nodiscard]] int dry_run_of_all(const Job& job, const Environment& environment, Millis patience,
                                 const Log& log);

}  // namespace muster::launcher
