// SPDX-License-Identifier: Apache-2.0
// NodeNews: what the agents of a job tell each other while an attempt runs, in the store on node 0. Below the
// attempt's keys: news/<k>, one after the other, for all: words of node 0 about workers that hang, and at
// last the attempt's outcome, of which the first that was written counts. Below the job's: inbox/<k>, such
// words for node 0, which removes them. One loop; owned by StaticRendezvous, whose link it uses.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "launcher/job/rendezvous.h"
#include "launcher/join/agent_link.h"
#include "launcher/join/node_entries.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {

/// A word as it lies in the store, and back; nothing: it is none.
[[nodiscard]] std::string to_entry(const control::Hang& word);
[[nodiscard]] std::optional<control::Hang> hang_from_entry(std::string_view text);

class NodeNews {
 public:
  using Heard = std::function<void(const control::Hang&)>;

  NodeNews(const Job& job, const NodeEntries& entries, AgentLink& link)
      : job_(job), entries_(entries), link_(link) {}

  /// On a link of its own; `heard` comes for every word before the outcome.
  Awaitable<Result<AttemptOutcome>> read(AgentLink& waiting, int attempt, Heard heard);
  /// The first outcome counts.
  Awaitable<Result<void>> end(int attempt, AttemptOutcome outcome);
  /// This node's part; the last one's makes the outcome.
  Awaitable<Result<void>> succeeded(int attempt);

  /// As node 0 to all others, as another to node 0.
  Awaitable<Result<void>> tell(int attempt, control::Hang word);
  /// Node 0's: on a link of its own, until that is closed.
  Awaitable<Result<void>> read_inbox(AgentLink& link, Heard heard);

 private:
  [[nodiscard]] std::string news(int attempt, int number) const;
  [[nodiscard]] std::string inbox(std::string_view name) const;

  const Job& job_;
  const NodeEntries& entries_;
  AgentLink& link_;
};

}  // namespace muster::launcher
