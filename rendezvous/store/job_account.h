// SPDX-License-Identifier: Apache-2.0
// JobAccount: what one job has of a store that others use too. A value; see JobAccounts, StoreCore and
// WaitTable.
#pragma once

#include <cstddef>

namespace muster {

struct JobAccount {
  std::size_t keys = 0;     ///< and queues that are not empty
  std::size_t bytes = 0;    ///< as StoreCore::num_bytes() counts them
  std::size_t waits = 0;    ///< as StoreCore::num_waits() counts them
  std::size_t clients = 0;  ///< connections
  [[nodiscard]] bool empty() const { return keys == 0 && bytes == 0 && waits == 0 && clients == 0; }
  friend bool operator==(const JobAccount&, const JobAccount&) = default;
};

}  // namespace muster
