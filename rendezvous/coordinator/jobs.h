// SPDX-License-Identifier: Apache-2.0
// Jobs: the coordinator's table of jobs, each with its round, and what their agents have to be told. Pure:
// authenticated messages, lost connections and the time come in as arguments; what that led to is in
// effects(). Owned by a ControlServer (or a test); one thread. Failure: an agent that breaks the rules is
// refused with a reason and its connection closed; no other job notices. A job is forgotten `keep` after its
// last agent left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/key_map.h"
#include "rendezvous/coordinator/job.h"
#include "rendezvous/coordinator/job_record.h"

namespace muster {

struct JobsOptions {
  std::string only_job;  ///< empty: whichever agents ask for
  /// Of only_job; nothing: those that its first node brings.
  std::optional<membership::Settings> rules = {};
  std::size_t max_jobs = 1024;
  std::size_t max_nodes_per_job = 100'000;
  /// Of what an agent says about itself: host, machine, role and addresses. A job keeps no more than this for
  /// each of its nodes.
  std::size_t max_node_bytes = 16384;
  Millis keep{0};
  /// A job some of whose agents were lost is remembered at least so long after the last one has gone: they
  /// may only have been cut off, and have to hear how it ended. A new job takes its name all the same.
  Millis return_grace{60'000};
  /// Reasons for waiting are told at most so often: with a message for each of 10,000 joins to each agent
  /// that waits, gathering would cost 50 million messages.
  Millis explain_interval{1000};
  /// False: the coordinator ends with its job, and whoever is early for the next one waits in vain here.
  bool outlives_jobs = true;
};

/// How jobs ended, and when, after the jobs themselves are forgotten, so that an agent which was running by
/// then hears of it instead of beginning its job anew and waiting alone; an agent that was started since is
/// of a new job. The last kMost of them.
class EndedJobs {
 public:
  struct Entry {
    Instant at{};
    membership::Cause ending;
  };
  static constexpr std::size_t kMost = 1024;
  static constexpr std::size_t kMaxTextBytes = 512;  // 1 MiB of them, with names and hosts

  void note(const std::string& name, Instant at, const membership::Cause& ending) {
    Entry entry{at, ending};
    if (entry.ending.text.size() > kMaxTextBytes) {
      entry.ending.text.resize(kMaxTextBytes);
      entry.ending.text += "...";
    }
    entries_.insert_or_assign(name, std::move(entry));
    if (entries_.size() > kMost)
      entries_.erase(std::ranges::min_element(entries_, {}, [](const auto& each) { return each.second.at; }));
  }

  [[nodiscard]] const KeyMap<Entry>& all() const { return entries_; }
  /// How the last job of this name ended, if an agent that has been running for `age` was there by then;
  /// else nullptr.
  [[nodiscard]] const Entry* outlived_by(std::string_view name, Millis age, Instant now) const {
    const Entry* found = find_in(entries_, name);
    return found != nullptr && bounded(age) > now - found->at ? found : nullptr;
  }

  /// Of an agent's own telling, so that nothing overflows.
  [[nodiscard]] static Millis bounded(Millis age) { return std::clamp(age, Millis(-kLongest), kLongest); }

 private:
  static constexpr Millis kLongest{std::int64_t{1000} * 86400 * 365};
  KeyMap<Entry> entries_;
};

class Jobs {
 public:
  explicit Jobs(const JobsOptions& options) : options_(options) {}

  /// What the calls so far have led to, in order. The owner takes it out.
  [[nodiscard]] JobsEffects& effects() { return effects_; }

  /// A connection whose agent has proven what it has to. `peer_address` is its host as seen from here.
  void connected(ConnectionId id, std::string job, std::string peer_address);
  /// Node ranks of the job that no agent has claimed since it is known here.
  [[nodiscard]] std::vector<int> orders_never_seen(std::string_view job) const;
  void receive(ConnectionId id, const control::Message& message, Instant now);
  /// Without a Leave, or after one.
  void disconnected(ConnectionId id, std::string_view error, Instant now,
                    membership::Break how = membership::Break::kEnd);
  /// Somebody failed before connected(): told to those who wait for it.
  void note_join_failure(std::string_view job, membership::JoinFailure failure, Instant now);

  /// Somebody who knows better than the connection says that the node is gone for good.
  void evict_node(std::string_view job, const membership::NodeId& node, const std::string& why, Instant now);
  /// A member's workers ask for a store that this coordinator has not: their generation ends.
  void store_lost(const NodeAssignment& member, Instant now);
  /// Who is about to be lost for its silence; to be looked at once more, since its messages may not be read
  /// yet.
  [[nodiscard]] std::vector<ConnectionId> overdue(Instant now) const;
  /// Bytes of it are there: messages that are not read yet, or not whole.
  void heard(ConnectionId id, Instant now);
  /// To be called at next_deadline(), and whenever it is convenient.
  void advance(Instant now);
  [[nodiscard]] Instant next_deadline() const;

  /// Takes every later change that has to outlive the process; empty: nobody does. The effects of a call come
  /// after what it recorded.
  void record_to(JobSink sink) { record_ = std::move(sink); }
  /// What there is to keep.
  void describe(const JobSink& to, Instant now) const;
  /// A job of a former process, whose agents have `grace` to come back.
  void restore(const std::string& name, const JobRecord& record, Instant now, Millis grace);

  [[nodiscard]] std::size_t num_jobs() const { return jobs_.size(); }
  [[nodiscard]] const KeyMap<Job>& all() const { return jobs_; }
  [[nodiscard]] const EndedJobs& ended() const { return ended_; }
  /// The host of a connection as seen from here; empty: there is no such connection.
  [[nodiscard]] std::string address_of(ConnectionId id) const {
    const Client* client = find_in(clients_, id);
    return client == nullptr ? std::string() : client->address;
  }
  /// nullptr: unknown.
  [[nodiscard]] const membership::Round* find_round(std::string_view name) const;
  [[nodiscard]] bool has_joined(ConnectionId id) const;
  /// Nothing: it takes part in no world that runs.
  [[nodiscard]] std::optional<NodeAssignment> member(ConnectionId id) const;
  /// JobState and NodeState for whoever looks in; of jobs that `may_see` refuses nothing, not even that they
  /// are. O(nodes) of the jobs that are told of.
  [[nodiscard]] std::vector<control::Message> answer(const control::Query& question,
                                                     const std::function<bool(std::string_view)>& may_see,
                                                     Instant now, control::QueryEnd& over) const;

 private:
  struct Client {
    std::string job;
    std::string address;
    std::optional<membership::NodeId> node;  // once joined
    bool refused = false;                    // nothing that it says counts any more
  };

  void join(ConnectionId id, Client& client, const control::Join& join, Instant now);
  void send_end(Job& job, ConnectionId id, Client& client, const control::Join& join, Instant now);
  [[nodiscard]] bool came_too_late(ConnectionId id, Client& client, const control::Join& join, Instant now);
  [[nodiscard]] Job* begin(ConnectionId id, const Client& client, const control::Join& join, Instant now);
  [[nodiscard]] Job* job_for(ConnectionId id, const Client& client, const control::Join& join, Instant now);
  void add_node(Job& job, ConnectionId id, Client& client, membership::Request request,
                const control::Join& join, Instant now);
  void on_ready(Job& job, const membership::NodeId& node, const control::Ready& ready, Instant now);
  void handle(Job& job, ConnectionId id, Client& client, const control::Message& message, Instant now);
  [[nodiscard]] JobRecord record_of(const Job& job, Instant now) const;
  void run_decisions(Job& job, Instant now);
  void take_leave(Job& job, Client& client, const std::string& host, const std::string& reason);
  void turn_away_surplus(Job& job);
  void keep(Job& job, Instant now);
  void send_reason(Job& job, Instant now);
  void schedule(Job& job, Instant now);
  void detach(Job& job, const membership::NodeId& node);
  /// Its connection, if it has one, is refused and speaks for no node any more.
  void turn_away(Job& job, const membership::NodeId& node, control::Refused::Reason reason,
                 const std::string& text);
  void refuse(ConnectionId id, control::Refused::Reason reason, std::string text);

  JobsOptions options_;
  JobsEffects effects_;
  JobSink record_;
  KeyMap<Job> jobs_;
  EndedJobs ended_;
  std::unordered_map<ConnectionId, Client> clients_;
  std::set<std::pair<Instant, std::string>> deadlines_;
};

}  // namespace muster
