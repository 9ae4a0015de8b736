// SPDX-License-Identifier: Apache-2.0
// Job: what one agent was asked to do, what it was assigned, and how it ended. Plain values: made by
// job_plan.h and the agent, read by everything else in launcher/. No behaviour here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hardware/placement.h"
#include "launcher/job/cause.h"
#include "launcher/job/exit_status.h"
#include "launcher/job/restart_policy.h"
#include "launcher/text/line_splitter.h"
#include "launcher/text/rank_ranges.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/etcd/settings.h"
#include "rendezvous/net/tls.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/protocol/world.h"

namespace muster::launcher {

// Rotation: how large a log file may grow and how many of its predecessors stay (--log-max-size, --log-keep).
// A value, made by job_plan, read by whoever writes log files.

struct Rotation {
  std::uint64_t max_bytes = 0;  // 0: files grow without a limit
  int keep = 5;                 // older files beside the current one
};

/// The program, before ${local_rank} is filled in. arguments[0] is what exec gets as argv[0].
struct Command {
  std::string path;  // absolute, or relative with a slash: executed without a search
  std::vector<std::string> arguments;
  std::string title;  // names the program in the report

  /// What people call it, and nothing that says more: the last part of its path, or the module's name.
  [[nodiscard]] std::string short_name() const {
    std::string_view name = title;
    while (name.size() > 1 && name.ends_with('/')) name.remove_suffix(1);
    return std::string(name.size() > 1 ? name.substr(name.rfind('/') + 1) : name);
  }
};

enum class View { kAll, kRank0, kFold };

/// torchrun's prefix of a line, and the default of --log-line-prefix-template.
inline constexpr std::string_view kDefaultPrefix = "[${role_name}${local_rank}]:";

struct LogSettings {
  std::optional<std::string> directory;  // --log-dir; nothing: a temporary one
  StreamSelection redirects;
  StreamSelection tee;
  std::vector<int> local_ranks_filter;  // empty: all
  std::vector<int> ranks_filter;        // likewise, of the world
  std::string prefix_template;
  View view = View::kAll;
  std::string hostname;  // ${hostname} in it: the machine's own, short, whatever --local-addr says
  // --duplicate-*-filters: teed lines that contain one of the texts are also kept apart; an empty text is in
  // every line. Empty: no such file.
  std::vector<std::string> stdout_filters, stderr_filters;
  Rotation rotation;
};

enum class RendezvousMode { kStandalone, kElastic };

/// What only a job with a coordinator has (kElastic).
struct ElasticJob {
  std::string endpoint_host;
  std::uint16_t endpoint_port = 0;  // 0: the kernel's choice, where this agent runs the coordinator
  std::optional<bool> is_host;  // whether this agent runs the coordinator; nothing: if it is at the endpoint
  membership::Settings rules;
  std::optional<int> order;         // --node-rank
  Millis connect_timeout{600'000};  // until the coordinator is reached
  Millis reconnect_for{0};
  Millis heartbeat_interval{5'000};  // of a coordinator that this agent runs
  std::string local_addr;            // the only address offered and listened at, unless it is a mere name
  std::string interface;             // likewise, the only one whose addresses are; empty: all
  std::optional<auth::Secret> secret;
  std::optional<etcd::Settings>
      etcd;  // over which the agents elect the coordinator; the endpoint is its first member
  std::optional<tls::Context> tls;         // towards the coordinator
  std::optional<tls::Context> tls_server;  // of a coordinator that this agent runs
  bool proves = false;                     // agents show a secret or a certificate
  /// Static rendezvous: `order` is the node's rank, and the workers are told the endpoint as it was given.
  /// Its port is the coordinator's and, unless `store_proxy`, that of the workers' store.
  bool ranks_given = false;
  bool store_proxy = false;  // the coordinator has the workers' store, and this agent carries it to them
};

struct Job {
  RendezvousMode mode = RendezvousMode::kStandalone;
  int nodes = 1;  // the most there can be
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;  // 0 in standalone: the kernel's choice
  Millis join_timeout{900'000};
  ElasticJob elastic;

  int local_world_size = 1;
  std::string role = "default";
  std::string run_id = "none";
  int max_restarts = 0;
  RestartRules restarts;
  Command command;
  bool virtual_local_rank = false;
  std::vector<RankPlacement> placement;  // by local rank; empty: neither asked for nor to be shown
  std::string visible_devices;           // CUDA_VISIBLE_DEVICES for --gpus; empty: as inherited
  std::string gpu_shortage;              // to be said: there are fewer GPUs than workers; empty: nothing
  std::vector<std::string> warnings;     // to be said before the start
  bool gpu_node = false;                 // the workers get CUDA_DEVICE_ORDER where it is not set
  int threads = 1;                       // each worker's share, where OMP_NUM_THREADS is not set
  bool cpu_quota_limited =
      false;             // CPU time is limited below the CPUs that OpenMP sees: told to one worker, too
  std::string hardware;  // "2 sockets, 2 NUMA nodes, 64 cores", as far as they may be used
  LogSettings logs;
  std::vector<int> signals;  // passed on to the workers
  std::string signals_text;  // --signals-to-handle as given
  Millis grace{30'000};
  HangRules hang;
  std::int64_t end_time_s = 0;  // when Slurm's time limit ends the job, since the epoch; 0: not known
  std::string host;             // this node's name in messages
  bool compare_clocks = false;  // with the first node's or the coordinator's, which is said where they differ
  std::string unhealthy;        // why this node takes no part, which it only tells the others; empty: it does
  int unhealthy_code = kExitPreflight;  // what it exits with then
  std::string lineage;         // of the workers: the launchers above, and this one's token at its end
  std::string status_address;  // HOST:PORT that --metrics-addr listens on; empty: none
  std::string port_file;       // gets the HOST:PORT of the coordinator that this agent runs; empty: none

  /// Nobody else can take part: nothing of it has to be reached from elsewhere.
  [[nodiscard]] bool one_node() const { return nodes + elastic.rules.spares == 1; }
  /// In the environment of whatever this agent's workers start, and nowhere else.
  [[nodiscard]] std::string token() const { return lineage.substr(lineage.rfind(':') + 1); }
};

/// Where this node stands in one attempt.
struct Assignment {
  int attempt = 0;  // restarts used so far
  int group_rank = 0;
  int group_world_size = 1;
  int base_rank = 0;
  int world_size = 1;
  int role_base_rank = 0;
  int role_world_size = 1;
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::string interface = {};   // by which the first node is reached; empty: not known
  std::int64_t generation = 0;  // as a coordinator counts; without one the same as attempt
};

/// How one worker of an attempt ended.
struct WorkerOutcome {
  int local_rank = 0;
  int rank = 0;
  int pid = 0;  // 0: was never started
  ProcessEnd end;
  bool stopped_by_us = false;    // it ended after muster had signalled it
  std::int64_t wall_time_s = 0;  // when the exit was learnt, seconds since the epoch
  std::string error_file;        // path; empty: none was written
  TextLines error_message;       // from the error file
  TextLines error_callstack;     // likewise
  std::vector<std::string> stderr_tail;
  Cause cause;
  std::string device;                    // "GPU 3 (GPU-5a...)"; empty: none
  std::string progress;                  // what it reported last about its progress
  std::string hang;                      // what is said of it where it was stopped because it hung
  std::vector<std::string> kernel;       // what the kernel's log says of it
  std::vector<std::string> gpu_holders;  // the other processes on its GPU, where that is why it failed
  /// From when its end was learnt until the attempt's outcome was known here; negative: it ended afterwards.
  std::int64_t before_outcome_ms = 0;
};

/// The event that ended an attempt, as told to other nodes.
struct FailureNotice {
  int node_rank = 0;     // -1: no member's failure
  int rank = -1;         // -1: not a worker's failure
  int exit_code = 0;     // what every muster of the job exits with
  std::string text;      // "rank 3 (local_rank 1, pid 77) on host-a exited with code 7"
  bool restart = false;  // the next attempt follows
  bool regroup = false;  // with restart: because other nodes take part, which uses none of --max-restarts
  int lost_node = -1;    // the node whose agent is gone; -1: none
  bool cut_off = false;  // the other nodes cannot be reached any more
  bool machine_at_fault = false;  // not the program: other machines come first for a while
  StepProgress reached = {};      // by the workers of the node that tells

  /// Workers saved their state and ended: no failure.
  [[nodiscard]] bool preempted() const { return exit_code == kExitPreempted && !restart; }
};

}  // namespace muster::launcher
