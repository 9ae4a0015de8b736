// SPDX-License-Identifier: Apache-2.0
// odd_collective: in a hang of programs that link the runtime, who has not come to the collective in which
// the others wait, or has come to another one. Judged by the numbers of the collectives that each rank's
// groups began last. Pure. Nobody stands out where all have come to the same one, or nobody waits in any.
#pragma once

#include <span>

#include "launcher/hang/hang_evidence.h"

namespace muster::launcher {

[[nodiscard]] Odd odd_collective(std::span<const RankEvidence* const> ranks);

}  // namespace muster::launcher
