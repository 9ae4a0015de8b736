// SPDX-License-Identifier: Apache-2.0
// Query: what somebody who looks in (musterctl jobs) asks a coordinator, and its answer: messages of the
// control protocol (control.h) on a connection that joins nothing. One question at a time, which changes
// nothing:
//   Query  ->
//            <-  JobState*, NodeState*, QueryEnd
// An answer has kMaxQueryEntries of each at most; QueryEnd says how many there are and where to go on.
// Values; texts are as agents gave them, cut short, and not to be shown to a terminal as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rendezvous/base/fieldwise.h"

namespace muster::control {

using fieldwise::operator==;

inline constexpr std::size_t kMaxQueryEntries = 1000;
inline constexpr std::size_t kMaxQueryText = 1024;  ///< bytes of each text in an answer

struct Query {
  std::string job;                ///< this one, with its nodes; empty: all that the asker may see
  std::string after;              ///< of the jobs those behind this name; empty: from the first
  std::uint64_t from_number = 0;  ///< of the nodes those from this number on
};

struct JobState {
  enum class Phase : std::uint8_t {
    kGathering,   ///< no world has run yet
    kRestarting,  ///< between two
    kRunning,
    kEnded,
    kLast = kEnded
  };
  std::string job;
  Phase phase = Phase::kGathering;
  std::int64_t generation = -1;  ///< that runs or ran last; -1: none yet
  std::int32_t restarts_used = 0;
  std::int32_t max_restarts = 0;
  std::int32_t num_present = 0;  ///< nodes that are connected and fit
  std::int32_t num_outside = 0;  ///< of these: without a place in the world that runs
  std::int32_t num_unhealthy = 0;
  std::int32_t num_away = 0;  ///< nodes whose connection broke and who may come back
  std::int32_t min_nodes = 0;
  std::int32_t max_nodes = 0;
  std::int32_t spares = 0;
  std::int32_t num_members = 0;  ///< of the world that runs or ran last, as the next
  std::int32_t world_size = 0;
  std::int64_t age_ms = 0;         ///< since this process knows the job
  std::int64_t forgotten_ms = -1;  ///< until it is forgotten; -1: that is not due
  std::int64_t epoch = -1;         ///< the furthest that the nodes have told of, as the next; -1: none
  std::int64_t step = -1;
  std::int32_t exit_code = 0;  ///< once ended
  std::string text;            ///< what it waits for, or how it ended
  std::string first_host;      ///< of the first node, as the next two: where its workers' store is
  std::string first_address;
  std::uint16_t first_port = 0;      ///< 0: the store is the coordinator's
  std::string first_status_address;  ///< HOST:PORT of the first node's status page; empty: none
};

struct NodeState {
  enum class State : std::uint8_t {
    kMember,    ///< runs workers
    kFinished,  ///< its workers succeeded
    kStopping,  ///< is stopping its workers, or pauses before a restart
    kWaiting,   ///< for a world, or a place in it
    kAway,      ///< its connection broke, it may come back
    kUnhealthy,
    kGone,  ///< a member of the last world that is not here any more
    kLast = kGone
  };
  std::uint64_t number = 0;  ///< in the order in which they came
  std::string host;
  State state = State::kMember;
  std::int32_t group_rank = -1;  ///< in the world that runs or ran last; -1: none
  std::int32_t base_rank = -1;   ///< its first worker's rank there
  std::int32_t ranks = 0;        ///< workers
  std::int32_t order = -1;       ///< the place that it asked for; -1: any
  std::string role;
  std::int64_t heard_ms = -1;  ///< since its last word; -1: not known
  std::string address;         ///< by which it reached the coordinator; else the best that it offered
  std::string text;            ///< why it is not a member, or is none that works
  std::string status_address;  ///< HOST:PORT of its /metrics; empty: none
};

struct QueryEnd {
  std::uint64_t num_jobs = 0;   ///< that the asker may see, however many were asked for, as the next
  std::uint64_t num_nodes = 0;  ///< of the job that was asked for
  bool more = false;            ///< jobs or nodes: ask again with the next two
  std::string after;
  std::uint64_t from_number = 0;
  std::string software;  ///< of the coordinator
  std::string problem;   ///< why it acknowledges nothing at present
};

}  // namespace muster::control
