// SPDX-License-Identifier: Apache-2.0
// Store limits: how much all clients of one store together may keep in it. Pure; asked by Session before it
// executes a request, so that a request which would exceed a limit changes nothing. O(1) for every request
// but those with a list of keys, which cost a look at each. Failure: text that names the option of musterd.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/store_core.h"
#include "rendezvous/wire.h"

namespace muster {

struct StoreLimits {
  std::size_t max_keys = 10'000'000;             ///< and queues
  std::size_t max_bytes = std::size_t{4} << 30;  ///< as StoreCore::num_bytes() counts them
  std::size_t max_waits = 10'000'000;            ///< as StoreCore::num_waits() counts them
};

/// Empty when the client's request keeps the limits, else what it would exceed.
[[nodiscard]] std::string exceeded_limit(const StoreCore& core, ClientId client, const wire::Request& request,
                                         const StoreLimits& limits);

}  // namespace muster
