// SPDX-License-Identifier: Apache-2.0
// What somebody who looks in (musterctl jobs) learns of a job and its nodes: from a Job to the messages of
// control.h. Pure; texts are cut short. Called by Jobs::answer. Nothing here fails.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rendezvous/coordinator/job.h"

namespace muster {

/// The host behind a connection, as it is seen from here.
using AddressOf = std::function<std::string(ConnectionId)>;

[[nodiscard]] control::JobState describe_job(const Job& job, Instant now);
/// kMaxQueryEntries nodes at most, from number `from` on; `over` gets how many there are and where to go on.
[[nodiscard]] std::vector<control::Message> describe_nodes(const Job& job, std::uint64_t from, Instant now,
                                                           const AddressOf& address_of,
                                                           control::QueryEnd& over);

}  // namespace muster
