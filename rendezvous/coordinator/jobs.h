// SPDX-License-Identifier: Apache-2.0
// Jobs: the coordinator's table of jobs, each with its round, and what their agents have to be told. Pure:
// authenticated messages, lost connections and the time come in as arguments, Effects come out. Owned by a
// ControlServer (or a test); one thread. Failure: an agent that breaks the rules is refused with a reason
// and its connection closed; no other job notices. A job is forgotten `keep` after its last agent left.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rendezvous/base/key_map.h"
#include "rendezvous/coordinator/ended_jobs.h"
#include "rendezvous/coordinator/job_record.h"
#include "rendezvous/coordinator/membership.h"
#include "rendezvous/coordinator/waiting_reason.h"
#include "rendezvous/protocol/control.h"

namespace muster {

using ConnectionId = std::uint64_t;

struct JobsOptions {
  std::string only_job;  ///< empty: whichever agents ask for
  /// Of only_job; nothing: those that its first node brings.
  std::optional<membership::Settings> rules = {};
  std::size_t max_jobs = 1024;
  std::size_t max_nodes_per_job = 100'000;
  /// Of what an agent says about itself: host, machine, role and addresses. A job keeps no more than this for
  /// each of its nodes.
  std::size_t max_node_bytes = 16384;
  /// Of a job's record, where it is kept. Nodes that are no members of the world and do not fit are left out:
  /// one that comes back to another process after the job's end is not told of it but refused, or taken for
  /// the first of a new job once the others are not waited for any more.
  std::size_t max_record_bytes = kMaxRecordBytes;
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

/// One message for some connections, in order with the others.
struct Delivery {
  std::vector<ConnectionId> to;
  control::Message message;
  bool close = false;  ///< afterwards

  friend bool operator==(const Delivery&, const Delivery&) = default;
};
struct JobsEffects {
  std::vector<Delivery> deliveries;
  std::vector<std::string> log;          ///< one line per transition
  std::vector<std::string> over;         ///< jobs whose running generation has ended
  bool formed = false;                   ///< deliveries tell of a new generation
  std::vector<ConnectionId> heartbeats;  ///< to whom an answer to one is due
  std::size_t num_unsaid = 0;            ///< lines that were left out

  /// But for heartbeats, which wait for nothing.
  [[nodiscard]] bool empty() const { return deliveries.empty() && log.empty() && over.empty(); }
  void clear() { *this = {}; }

  // So that effects which have to wait take no more memory than there are connections.
  /// Nothing is delivered to it any more. What it would have got goes soon: O(1) for each, in the mean.
  void forget(ConnectionId id);
  /// Leaves out lines beyond kMaxWaitingLines.
  void thin_log();
  static constexpr std::size_t kMaxWaitingLines = 1000;
  static constexpr std::size_t kMinForgotten = 64;

 private:
  std::unordered_set<ConnectionId> forgotten_;
  std::size_t sweep_at_ = kMinForgotten;
};

/// An agent's place in a job: the generation is that of the world it is part of and which runs.
struct Membership {
  std::string job;
  membership::NodeId node;
  std::int64_t generation = 0;
};

class Jobs {
 public:
  explicit Jobs(const JobsOptions& options) : options_(options) {}

  /// A connection whose agent has proven what it has to. `peer_address` is its host as seen from here.
  void connected(ConnectionId id, std::string job, std::string peer_address);
  /// Node ranks of the job that no agent has claimed since it is known here.
  [[nodiscard]] std::vector<int> orders_never_seen(std::string_view job) const;
  void receive(ConnectionId id, const control::Message& message, Instant now, JobsEffects& effects);
  /// Without a good-bye, or after one.
  void disconnected(ConnectionId id, std::string_view error, Instant now, JobsEffects& effects,
                    membership::Break how = membership::Break::kEnd);
  /// Somebody failed before connected(): told to those who wait for it.
  void note_trouble(std::string_view job, membership::Trouble trouble, Instant now, JobsEffects& effects);

  /// Somebody who knows better than the connection says that the node is gone for good.
  void give_up(std::string_view job, const membership::NodeId& node, const std::string& why, Instant now,
               JobsEffects& effects);
  /// A member's workers ask for a store that this coordinator has not: their generation ends.
  void store_lost(const Membership& member, Instant now, JobsEffects& effects);
  /// Who is about to be lost for its silence; to be looked at once more, since its words may not be read yet.
  [[nodiscard]] std::vector<ConnectionId> overdue(Instant now) const;
  /// Bytes of it are there: words that are not read yet, or not whole.
  void heard(ConnectionId id, Instant now, JobsEffects& effects);
  /// To be called at next_deadline(), and whenever it is convenient.
  void advance(Instant now, JobsEffects& effects);
  [[nodiscard]] Instant next_deadline() const;

  /// Tells every later change that has to outlive the process; nullptr: nobody. The effects of a call come
  /// after what it told.
  void record_to(JobRecorder* recorder) { recorder_ = recorder; }
  /// Tells what there is to keep.
  void describe(JobRecorder& to, Instant now) const;
  /// A job of a former process, whose agents have `grace` to come back.
  void restore(const std::string& name, const JobRecord& record, Instant now, Millis grace,
               JobsEffects& effects);

  [[nodiscard]] std::size_t num_jobs() const { return jobs_.size(); }
  [[nodiscard]] std::vector<std::string> names() const;
  /// nullptr: unknown.
  [[nodiscard]] const membership::Round* find_round(std::string_view job) const;
  [[nodiscard]] bool has_joined(ConnectionId id) const;
  /// Where this Join takes back the place of a member whose generation goes on, which is nothing to record:
  /// the connection that has the place yet, or 0.
  [[nodiscard]] std::optional<ConnectionId> place_taken_back(ConnectionId id,
                                                             const control::Join& join) const;
  /// Nothing: it takes part in no world that runs.
  [[nodiscard]] std::optional<Membership> member(ConnectionId id) const;
  /// JobState and NodeState for whoever looks in; of jobs that `may_see` refuses nothing, not even that they
  /// are. O(nodes) of the jobs that are told of.
  [[nodiscard]] std::vector<control::Message> answer(const control::Inquire& question,
                                                     const std::function<bool(std::string_view)>& may_see,
                                                     Instant now, control::InquiryOver& over) const;

 private:
  struct Program {
    std::string name;
    std::string host;  // of that node
  };
  static constexpr std::size_t kMaxRoles = 64;
  struct Job {
    std::string name;
    membership::Settings settings;
    membership::Round round;
    std::unordered_map<membership::NodeId, ConnectionId, membership::NodeIdHash> connections;
    membership::WaitingReason told;  // the last reason pushed
    Instant told_at{};
    // Who takes part or was lost: told how the job ended if they come back later.
    std::unordered_set<membership::NodeId, membership::NodeIdHash> known;
    // Of a former process's job that was over: whose connections were there, and until when they are
    // expected.
    std::unordered_set<membership::NodeId, membership::NodeIdHash> awaited;
    Instant awaited_until{};
    std::vector<ConnectionId> newcomers;  // since then: they have heard no reason yet
    bool changed = false;                 // something happened since
    bool lost_some = false;               // agents that may come back
    bool recorded = false;                // the recorder knows of it
    // By role: what the first of its nodes runs. Of kMaxRoles roles.
    std::map<std::string, Program> programs;
    std::set<int> orders_seen;
    bool programs_differ = false;  // which was said
    bool cut = false;              // but not of all that are known, which was said
    Instant since{};               // it is known here
    Instant forget_at = Instant::max();
    Instant deadline = Instant::max();  // as in deadlines_
  };
  struct Client {
    std::string job;
    std::string address;
    std::optional<membership::NodeId> node;  // once joined
    bool refused = false;                    // nothing that it says counts any more
  };

  void join(ConnectionId id, Client& client, const control::Join& join, Instant now, JobsEffects& effects);
  void tell_end(Job& job, ConnectionId id, Client& client, const control::Join& join, Instant now,
                JobsEffects& effects);
  [[nodiscard]] bool came_too_late(ConnectionId id, Client& client, const control::Join& join, Instant now,
                                   JobsEffects& effects);
  [[nodiscard]] static bool gives_way(const Job& job, const control::Join& join, Instant now);
  [[nodiscard]] Job* begin(ConnectionId id, const Client& client, const control::Join& join, Instant now,
                           JobsEffects& effects);
  [[nodiscard]] Job* job_for(ConnectionId id, const Client& client, const control::Join& join, Instant now,
                             JobsEffects& effects);
  void admit(Job& job, ConnectionId id, Client& client, membership::Request request,
             const control::Join& join, Instant now, JobsEffects& effects);
  [[nodiscard]] static std::string disagreement_about_program(const Job& job,
                                                              const membership::Request& request);
  static void remark(Job& job, ConnectionId id, const membership::Request& request,
                     const membership::Settings& wanted, JobsEffects& effects);
  void hear_ready(Job& job, ConnectionId id, const membership::NodeId& node, const control::Ready& ready,
                  Instant now, JobsEffects& effects);
  void handle(Job& job, ConnectionId id, Client& client, const control::Message& message, Instant now,
              JobsEffects& effects);
  static void pass_on(const Job& job, control::Report report, const std::string& host, int group_rank,
                      JobsEffects& effects);
  static void pass_on(const Job& job, control::Hang word, const std::string& host, int group_rank,
                      JobsEffects& effects);
  static void expect_no_report(const Job& job, const membership::NodeId& node, JobsEffects& effects);
  [[nodiscard]] static std::string disagreement_about_store(const Job& job,
                                                            const membership::Request& request);
  [[nodiscard]] static bool is_deserted(const Job& job);
  [[nodiscard]] static bool is_awaited(const Job& job, Instant now);
  [[nodiscard]] JobRecord record_of(const Job& job, Instant now) const;
  void settle(Job& job, Instant now, JobsEffects& effects);
  void tell_world(Job& job, JobsEffects& effects) const;
  void tell_outsider(const Job& job, const membership::NodeId& node, ConnectionId id,
                     JobsEffects& effects) const;
  static void release(Job& job, ConnectionId id, Client& client, const std::string& host,
                      const control::Stop& stop, JobsEffects& effects);
  void turn_away_surplus(Job& job, JobsEffects& effects);
  void tell_member(const Job& job, std::size_t group_rank, JobsEffects& effects) const;
  void keep(Job& job, Instant now, JobsEffects& effects);
  void remember(Job& job, const membership::NodeId& node) const;
  void forget(const Job& job);
  void tell_reason(Job& job, Instant now, JobsEffects& effects);
  void schedule(Job& job, Instant now);
  void detach(Job& job, const membership::NodeId& node);
  void refuse(ConnectionId id, control::Refused::Reason reason, std::string text, JobsEffects& effects);
  [[nodiscard]] std::vector<ConnectionId> everybody(const Job& job) const;
  [[nodiscard]] control::JobState state_of(const Job& job, Instant now) const;
  [[nodiscard]] std::vector<control::Message> nodes_of(const Job& job, std::uint64_t from, Instant now,
                                                       control::InquiryOver& over) const;

  JobsOptions options_;
  JobRecorder* recorder_ = nullptr;
  KeyMap<Job> jobs_;
  EndedJobs ended_;
  std::unordered_map<ConnectionId, Client> clients_;
  std::set<std::pair<Instant, std::string>> deadlines_;
};

/// One line without what a terminal would obey.
[[nodiscard]] std::string one_line(std::string_view text, std::size_t max_bytes = 4096);

/// Where the node can be reached: what it offers, with the address it is seen under in front if that is among
/// them. One that is not is none of its own, or one that --iface or --local-addr excludes; it counts where
/// the node offers nothing but loopback.
[[nodiscard]] std::vector<std::string> reachable_addresses(const std::vector<std::string>& offered,
                                                           const std::string& seen);

}  // namespace muster
