// SPDX-License-Identifier: Apache-2.0
// Safe point: tells the launcher that a checkpoint is written, so that a restart costs no step now. With
// muster --join-at=safe-point nodes that come while the job runs wait for it, and the world grows then;
// otherwise nobody asks and nothing is done. To be called by one rank, when the checkpoint is whole: where
// several ranks write a part each, behind a barrier.
#pragma once

#include <chrono>

namespace muster {

/// Where nodes wait to join, the workers are stopped now, and this call does not return, or returns because
/// of the signal. Else it returns once the launcher has said that nobody waits, which takes it a round trip
/// to the coordinator, or after `patience`. Meanwhile the other ranks come no further than their next
/// collective: no step behind the checkpoint is lost. Without a launcher that asks for it: at once. Nothing
/// here fails: what cannot be announced is left out. Any thread.
void announce_safe_point(std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace muster
