// SPDX-License-Identifier: Apache-2.0
// Outliers: in a hang nearly all workers wait for one; which one, judged by what is known of each. Pure. From
// the surest sign to the weakest: a rank has ended or is stopped; it has not come to the collective that the
// others are in; it is behind (or ahead of) the others; its phase, its stack, its system call differs from
// the others'. A sign counts where it sets apart a minority, or, where two halves differ, leaves one half
// that waits in a collective.
#pragma once

#include <span>

#include "launcher/hang/snapshot.h"

namespace muster::launcher {

[[nodiscard]] Outliers find_outliers(std::span<const RankSnapshot> ranks);

}  // namespace muster::launcher
