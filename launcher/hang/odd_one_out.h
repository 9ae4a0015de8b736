// SPDX-License-Identifier: Apache-2.0
// odd_one_out: in a hang nearly all workers wait for one. Which one, judged by what is known of each. Pure.
// From the surest sign to the weakest: one has ended or is stopped; one has not come to the collective that
// the others are in (odd_collective.h); one is behind (or ahead of) the others; its phase, its stack, its
// system call is another one than the others'. A sign counts where it sets apart a minority, or, where two
// halves differ, leaves one half that waits in a collective.
#pragma once

#include <span>

#include "launcher/hang/hang_evidence.h"

namespace muster::launcher {

[[nodiscard]] Odd odd_one_out(std::span<const RankEvidence> ranks);

/// A function's or phase's name says that it waits for other ranks: "ncclAllReduce", "gloo::barrier".
[[nodiscard]] bool is_collective(std::string_view name);

}  // namespace muster::launcher
