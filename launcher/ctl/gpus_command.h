// SPDX-License-Identifier: Apache-2.0
// musterctl gpus: which processes use the GPUs of this host (report/gpu_holders.h), as a table or JSON, and
// with
// --free the end of those of the caller that a dead agent left behind. Blocks, at most some seconds where the
// driver does not answer: then processes are known by the device files that they have open. Called by
// musterctl's main. Returns its exit status: 4: something of what is to be freed still runs.
#pragma once

#include "rendezvous/base/env.h"

namespace muster::launcher {

struct GpusCommand {
  bool json = false;
  bool free = false;
};

[[nodiscard]] int show_gpus(const GpusCommand& command, const Environment& environment);

}  // namespace muster::launcher
