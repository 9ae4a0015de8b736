// SPDX-License-Identifier: Apache-2.0
// How the ranks of one attempt agree on a name for it, in a store that may be full of earlier attempts: a
// launcher reuses its store after a restart, a rank may have died before or during its init(), and no counter
// that a rank or a node keeps is the same everywhere. Every rank has a random nonce and a log of messages in
// the store; rank 0 answers each "hello" under a key that contains the rank's own nonce, so no rank can take
// an old answer for its own, and goes on when each rank has acknowledged rank 0's nonce, which is the name.
// It needs only that the ranks of an earlier attempt are no longer running, as every launcher sees to.
// Called by init(). Failure: kTimeout naming the ranks that did not come, as far as this rank can know.
#pragma once

#include <string>

#include <muster/store.h>

#include "rendezvous/base/clock.h"

namespace muster::groups {

/// A collective. Returns the same text on every rank of this attempt, and never one that was returned before.
[[nodiscard]] Result<std::string> meet(Store& store, int rank, int world_size, Instant deadline);

}  // namespace muster::groups
