// SPDX-License-Identifier: Apache-2.0
// What the target of the launcher's AgentLink asks, and in which order: its seeds are the answers to just
// this.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace muster::fuzz {

enum class AgentOperation : std::uint8_t { kSet, kGet, kSetIfAbsent, kAdd, kRemove, kExists, kWait };
inline constexpr std::size_t kNumAgentOperations = 7;

/// Those of the first byte of an input, whatever it is.
inline std::vector<AgentOperation> agent_operations(std::uint8_t choice) {
  std::vector<AgentOperation> out;
  for (unsigned i = 0, at = choice; i < 8; ++i, at = at * 5 + 3)
    out.push_back(static_cast<AgentOperation>(at % kNumAgentOperations));
  return out;
}

}  // namespace muster::fuzz
