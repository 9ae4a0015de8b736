// SPDX-License-Identifier: Apache-2.0
// JobRecord: what of a job outlives the coordinator's process: its rules, its world, its generation, the
// restarts it has used. Nodes that wait for a world are not part of it: they come back and join anew. Pure
// values; times are kept as what is left of them, since another process's clock says nothing. Made by Jobs,
// written by wal/ or etcd/.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/coordinator/membership.h"

namespace muster {

/// What is kept of the steps that a job's workers tell of.
struct JobProgress {
  ProgressTracker steps;
  StepProgress reached;         ///< as in Round, as is the next
  std::optional<bool> unnoted;  ///< while kGathering
};
[[nodiscard]] JobProgress progress_of(const membership::Round& round);

struct JobRecord {
  membership::Settings settings;
  membership::Phase phase = membership::Phase::kGathering;
  int restarts_used = 0;
  JobProgress progress;
  membership::World world;                               ///< the running or the last one
  std::vector<membership::NodeId> finished;              ///< members all of whose workers succeeded
  std::vector<std::pair<std::string, Millis>> excluded;  ///< machine, for how long
  membership::Cause ending;                              ///< while kClosed
  std::vector<membership::NodeId> known;                 ///< no members; they hear how it ended, as those do
  std::vector<membership::NodeId> gone;                  ///< while kClosed: of both, who is not connected

  /// A connection of a job that is over has gone, maybe once more; or that of a node which is left out.
  void has_gone(const membership::NodeId& node) {
    if (gone.size() < world.slots.size() + known.size() && std::ranges::find(gone, node) == gone.end())
      gone.push_back(node);
  }
};

/// Of JobRecord::known. With all of them and a world of 9,000 nodes a record stays within the 1.5 MiB that
/// etcd takes in a request.
inline constexpr std::size_t kMaxKnown = 4096;

[[nodiscard]] JobRecord make_record(const membership::Settings& settings, const membership::Round& round,
                                    Instant now);

/// The round as it was. Members of a running world are taken for disconnected, and have `grace` to come back.
[[nodiscard]] membership::Round make_round(const JobRecord& record, Instant now, Millis grace);

/// The record alone, where it is kept elsewhere than in a log.
void encode(const JobRecord& record, std::string& out);
/// Nothing if the bytes are no such record.
[[nodiscard]] std::optional<JobRecord> decode_job(std::string_view bytes);

// Changes of jobs that outlive the process. Views are the caller's.

/// The job's record is this one from now on.
struct JobRecorded {
  std::string_view job;
  JobRecord record;
};
/// All workers of a member of the running world succeeded.
struct MemberFinished {
  std::string_view job;
  membership::NodeId node;
};
/// The workers of the last generation came further than was known, or another one is counted.
struct ProgressMade {
  std::string_view job;
  JobProgress progress;
};
/// A connection of a job that is over has gone.
struct NodeGone {
  std::string_view job;
  membership::NodeId node;
};
struct JobForgotten {
  std::string_view job;
};
using JobChange = std::variant<JobRecorded, MemberFinished, ProgressMade, NodeGone, JobForgotten>;
/// Takes every change, in order.
using JobSink = std::function<void(const JobChange&)>;

using JobRecords = std::map<std::string, JobRecord, std::less<>>;
/// Nothing where the job of the change is not there.
void apply(const JobChange& change, JobRecords& jobs);
/// Whether a coordinator can go on with what was read: nothing overflows, no index is beyond its list.
[[nodiscard]] bool makes_sense(const JobChange& change);

}  // namespace muster
