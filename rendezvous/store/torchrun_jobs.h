// SPDX-License-Identifier: Apache-2.0
// TorchrunJobs: which jobs of torchrun use a store, and when nobody uses one any more. An agent shows itself
// by COMPARE_SET on its job's state, "/torch.rendezvous.<id>", which each does before anything else; its
// connection's end is its end, since PyTorch's clients do not reconnect. Pure; owned by a StoreCore, one
// thread. Nothing here fails. Source: c10d_rendezvous_backend.py and dynamic_rendezvous.py (the keys of a
// round begin with "/torch.rendezvous.<id>.<round>/").
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/key_map.h"
#include "rendezvous/store/wait_table.h"

namespace muster {

class TorchrunJobs {
 public:
  static constexpr std::string_view kPrefix = "/torch.rendezvous.";
  static constexpr std::size_t kMaxStates = 16;
  /// Of deserted jobs that are kept; with one more the first of them is due at once.
  static constexpr std::size_t kMaxDeserted = 10'000;
  /// Of a job's state. An id with a slash, with which torchrun fails, has none.
  [[nodiscard]] static bool is_state(std::string_view key);
  /// Of the job that the key belongs to, as its state or a key of one of its rounds; empty: none. Job "a" has
  /// "a.0/x" and not "a.0", nor "a.0.1/x".
  [[nodiscard]] static std::string_view state_of(std::string_view key);

  /// Until then nobody is noted.
  void start() { on_ = true; }
  /// A client compared and set a key that is there now. Of one client no more than kMaxStates count.
  void took_part(ClientId client, std::string_view key);
  void gone(ClientId client);
  /// A job whose agents were clients of a former process.
  void found(std::string_view state);

  [[nodiscard]] std::size_t num_agents(std::string_view state) const {
    const auto found = agents_.find(state);
    return found == agents_.end() ? 0 : found->second.size();
  }

  /// Jobs that have lost their last agent since the last call are due `keep` after `now`, unless an agent of
  /// theirs comes.
  void settle(Instant now, Millis keep);
  /// max: none is due.
  [[nodiscard]] Instant next_deadline() const;
  /// The states of those that are due, which are forgotten.
  [[nodiscard]] std::vector<std::string> take_due(Instant now);

 private:
  bool on_ = false;
  std::map<std::string, std::set<ClientId>, std::less<>> agents_;  // none is empty
  std::unordered_map<ClientId, std::set<std::string>> states_;     // of each agent, mostly one
  std::set<std::string, std::less<>> fresh_;                       // deserted since the last settle()
  void forget_due(std::string_view state);

  std::map<std::string, Instant, std::less<>> due_;
  std::set<std::pair<Instant, std::string_view>> by_time_;  // the names are those of due_
  std::set<std::string, std::less<>> surplus_;              // due at once, and not in due_
};

}  // namespace muster
