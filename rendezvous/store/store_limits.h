// SPDX-License-Identifier: Apache-2.0
// Store limits: how much all clients of one store together may keep in it, and how much of that one job.
// Pure; asked by Session before it executes a request, so that a request which would exceed a limit changes
// nothing. O(1) for every request but those with a list of keys, which cost a look at each. Failure: text
// that names the option of musterd.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/store/store_core.h"
#include "rendezvous/store/wire.h"

namespace muster {

/// Of each job of torchrun among the clients of a store (job_accounts.h), or of a store that is one job's
/// alone.
struct JobLimits {
  std::size_t max_connections = 500'000;
  std::size_t max_keys = 5'000'000;              ///< and queues
  std::size_t max_bytes = std::size_t{2} << 30;  ///< as StoreCore::num_bytes() counts them
  std::size_t max_waits = 5'000'000;             ///< as StoreCore::num_waits() counts them
};

struct StoreLimits {
  std::size_t max_keys = 10'000'000;             ///< and queues
  std::size_t max_bytes = std::size_t{4} << 30;  ///< as StoreCore::num_bytes() counts them
  std::size_t max_waits = 10'000'000;            ///< as StoreCore::num_waits() counts them
  JobLimits job = {};
  bool is_one_job = false;  ///< the store is one job's: `job` bounds all of it, but for connections
};

/// The limits of a store that is one job's.
[[nodiscard]] StoreLimits of_one_job(const JobLimits& job);

/// Empty when the client's request keeps the limits, else what it would exceed. A request that is let in
/// makes its client one of the job whose names it changes or waits for.
[[nodiscard]] std::string admit(StoreCore& core, ClientId client, const wire::Request& request,
                                const StoreLimits& limits);

}  // namespace muster
