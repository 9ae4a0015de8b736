// SPDX-License-Identifier: Apache-2.0
// TextExchange: every member gives a text and gets everybody's, in member order: how groups agree while they
// are being made (through the Store) and later (through themselves). Every member makes the same calls in the
// same order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <muster/store.h>

#include "rendezvous/base/clock.h"

namespace muster::groups {

using TextExchange = std::function<Result<std::vector<std::string>>(std::string mine)>;

/// Through keys "<name>/<round>/<rank>" of `store`. `ranks` are the members, `me` an index into it. At the
/// deadline: kTimeout naming the ranks that are missing. `store` outlives the exchange.
[[nodiscard]] TextExchange exchange_through_store(Store& store, std::string name, std::vector<int> ranks,
                                                  int me, Instant deadline);

}  // namespace muster::groups
