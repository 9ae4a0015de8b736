// SPDX-License-Identifier: Apache-2.0
// TorchrunJobs: which jobs of torchrun use a store, and when nobody uses one any more. An agent shows itself
// by COMPARE_SET on its job's state, "/torch.rendezvous.<id>", which each does before anything else; its
// connection's end is its end, since PyTorch's clients do not reconnect. Pure: time is an argument. Owned by
// a net::Server, told by its Sessions; one thread. Nothing here fails. Source:
// c10d_rendezvous_backend.py and dynamic_rendezvous.py (the keys of a round begin with
// "/torch.rendezvous.<id>.<round>/").
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/store/wait_table.h"

namespace muster {

class TorchrunJobs {
 public:
  static constexpr std::string_view kPrefix = "/torch.rendezvous.";
  static constexpr std::size_t kMaxStates = 16;  ///< of one client that count
  /// Of deserted jobs that are kept; with one more the first of them is due at once.
  static constexpr std::size_t kMaxDeserted = 10'000;
  /// Of a job's state. An id with a slash, with which torchrun fails, has none.
  [[nodiscard]] static bool is_state(std::string_view key);
  /// Of the job that the key belongs to, as its state or a key of one of its rounds; empty: none. Job "a" has
  /// "a.0/x" and not "a.0", nor "a.0.1/x".
  [[nodiscard]] static std::string_view state_of(std::string_view key);

  /// Jobs are due `keep` after they have lost their last agent, unless another comes.
  explicit TorchrunJobs(Millis keep) : keep_(keep) {}

  /// A client compared and set the state, which is there now.
  void joined(ClientId client, std::string_view state);
  void left(ClientId client, Instant now);
  /// A state whose agents were clients of a former process.
  void found(std::string_view state, Instant now);

  /// max: none is due.
  [[nodiscard]] Instant next_deadline() const;
  /// The states of those that are due, which are forgotten.
  [[nodiscard]] std::vector<std::string> take_due(Instant now);

 private:
  struct Job {
    std::set<ClientId> agents;
    Instant due = Instant::max();  // max: it has agents
  };
  void desert(const std::string& state, Job& job, Instant now);

  Millis keep_;
  std::map<std::string, Job, std::less<>> jobs_;                // by state
  std::unordered_map<ClientId, std::set<std::string>> states_;  // of each agent, mostly one
  std::set<std::pair<Instant, std::string>> due_;               // of the deserted ones
};

}  // namespace muster
