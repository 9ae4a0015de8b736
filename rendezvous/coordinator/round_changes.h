// SPDX-License-Identifier: Apache-2.0
// Round changes: the steps that events (membership.cc) and decisions (decide.cc) share. They keep the
// round's counters true. For these two files only; see membership.h.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/coordinator/membership.h"

namespace muster::membership {

/// nullptr: not here.
[[nodiscard]] Node* find_node(Round& round, const NodeId& id);
/// Adds a node to the counters (+1), or takes it out of them before it changes (-1).
void count_node(Round& round, const Node& node, int sign);
void remove_node(Round& round, const NodeId& id);
/// Why an unhealthy node takes no part is kept for those who wait, though it goes.
void note_unhealthy(Round& round, const Node& node);
void forget_join_failure(Round& round, std::string_view name);
/// The node is gone for good, without a good-bye.
void lose_node(Round& round, const Settings& settings, const Node& node, const std::string& text,
               Instant now);
void begin_gathering(Round& round, const Settings& settings, Instant now);
void close_round(Round& round, Cause ending);
[[nodiscard]] Cause cause_of(Cause::Kind kind, const Node& node, std::string text);

}  // namespace muster::membership
