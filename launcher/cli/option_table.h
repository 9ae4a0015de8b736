// SPDX-License-Identifier: Apache-2.0
// The one table of muster's options: name, where the value goes, default, group, meaning. The parser, --help,
// the shells' completion, what is passed on to srun and to the doctor's job, launcher/reference.md
// (scripts/checks/reference.py) and the parity tests read it. Dashes and underscores inside a name are the
// same. Source of torchrun's options: torch/distributed/run.py (get_args_parser) of PyTorch 2.14.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <variant>

#include <climits>

#include "launcher/cli/options.h"

namespace muster::launcher {

enum class Group {
  kNodes,
  kRendezvous,
  kSecurity,
  kFailures,
  kOutput,
  kPlacement,
  kRunning,
  kHelp,
  kTorchrun
};

/// Where a value goes; its type says what a value may be.
using OptionTarget = std::variant<bool Options::*, int Options::*, std::optional<int> Options::*,
                                  double Options::*, std::optional<double> Options::*, std::string Options::*,
                                  std::optional<std::string> Options::*>;

// Traits of an option.
inline constexpr unsigned kOwn = 1;        // not torchrun's: gives way where a shortened name could be either
inline constexpr unsigned kCommon = 2;     // in --help, not only in --help-all
inline constexpr unsigned kTypedOnly = 4;  // without a PET_* variable
inline constexpr unsigned kMayBeEmpty = 8;   // an empty value counts as given, and leaves the default
inline constexpr unsigned kKeepsEmpty = 16;  // an empty value is a value of its own
inline constexpr unsigned kChoice = 32;      // `metavar` lists all the values there are
inline constexpr unsigned kForDoctor = 64;   // says which nodes there are and how they meet
inline constexpr unsigned kForExec = 128;    // means something for --exec, which starts no agent
inline constexpr unsigned kNoEffect = 256;   // accepted so that torchrun's command lines work
inline constexpr unsigned kRefused = 512;    // torchrun has it; `meaning` says what to use instead

struct OptionRow {
  std::string_view name;  // without dashes in front
  char letter;            // 0: none
  OptionTarget target;
  std::string_view metavar;
  std::string_view default_text;
  Group group;
  unsigned traits;
  std::string_view meaning;  // its first sentence is what --help shows
  double min = 0;            // of a number
  double max = INT_MAX;

  [[nodiscard]] constexpr bool is(unsigned trait) const { return (traits & trait) != 0; }
  [[nodiscard]] constexpr bool takes_value() const {
    return !std::holds_alternative<bool Options::*>(target);
  }
  /// "PET_NNODES". Command line beats environment beats default. Empty: none.
  [[nodiscard]] std::string variable() const;
};

inline constexpr std::array kOptionTable = {
    // Which nodes and workers there are, and what a worker runs.
    OptionRow{"nnodes", 0, &Options::nnodes, "N|MIN:MAX", "1; Slurm's", Group::kNodes,
              kCommon | kForDoctor | kForExec,
              "number of nodes, or a range. A range needs c10d, muster or etcd"},
    OptionRow{"nproc-per-node", 0, &Options::nproc_per_node, "N|auto|gpu|cpu", "one per GPU, else 1",
              Group::kNodes, kCommon | kForExec, "number of workers on this node"},
    OptionRow{"node-rank", 0, &Options::node_rank, "N", "0; Slurm's; with c10d none", Group::kNodes,
              kCommon | kForDoctor | kForExec,
              "rank of this node, 0 to NNODES-1. With c10d it is optional and orders the nodes"},
    OptionRow{"standalone", 0, &Options::standalone, "", "", Group::kNodes, kForDoctor,
              "run on one node, with the store on a free port. The default for one node"},
    OptionRow{"role", 0, &Options::role, "NAME", "default", Group::kNodes, kKeepsEmpty | kForExec,
              "role of the workers on this node"},
    OptionRow{"module", 'm', &Options::module, "", "", Group::kNodes, kCommon | kForExec,
              "run the program as a Python module, like python -m"},
    OptionRow{"no-python", 0, &Options::no_python, "", "", Group::kNodes, kForExec,
              "execute the program directly, whatever its name"},
    OptionRow{"run-path", 0, &Options::run_path, "", "", Group::kNodes, 0,
              "run the script with Python's runpy, which records an exception in the error file"},
    OptionRow{"no-use-env", 0, &Options::no_use_env, "", "", Group::kNodes, kOwn,
              "pass --local-rank=N to the program as its first argument, as torch.distributed.launch did"},
    OptionRow{"local-rank-arg", 0, &Options::local_rank_arg, "NAME", "local-rank", Group::kNodes, kOwn,
              "pass the local rank to the program under this name. PyTorch before 2.0 used local_rank"},
    OptionRow{"use-env", 0, &Options::use_env, "", "", Group::kNodes, kOwn | kTypedOnly,
              "pass the local rank in LOCAL_RANK only. This is the default; torch.distributed.launch has the "
              "option"},
    OptionRow{"local-addr", 0, &Options::local_addr, "HOST", "the host's name", Group::kNodes,
              kMayBeEmpty | kForDoctor,
              "name of this node in messages and reports. An address of this host is also the only one that "
              "the agent offers to other nodes and listens on"},

    // How the nodes meet: launcher/plan/rendezvous_plan.h makes a Job of these.
    OptionRow{"rdzv-backend", 0, &Options::rdzv_backend, "NAME", "static; under Slurm c10d",
              Group::kRendezvous, kCommon | kForDoctor,
              "static, c10d, muster or etcd. static: every node has a rank. c10d and muster: a coordinator "
              "at the endpoint assigns the ranks. etcd: the agents elect one of them to run the coordinator"},
    OptionRow{
        "rdzv-endpoint", 0, &Options::rdzv_endpoint, "HOST[:PORT]", "", Group::kRendezvous,
        kCommon | kMayBeEmpty | kForDoctor,
        "address of the coordinator. c10d: if no musterd listens there, the agent of that host runs the "
        "coordinator (port 29400). muster: a musterd (port 29500). static: the same as --master-addr "
        "and --master-port. etcd: its members (port 2379), HOST[:PORT],HOST[:PORT]"},
    OptionRow{"rdzv-id", 0, &Options::rdzv_id, "ID", "none, or a UUID with one node", Group::kRendezvous,
              kCommon | kForDoctor, "id of the job. The workers are told it"},
    OptionRow{
        "rdzv-conf", 0, &Options::rdzv_conf, "K=V,K=V", "", Group::kRendezvous, kMayBeEmpty | kForDoctor,
        "settings of the rendezvous, such as join_timeout=SECONDS. The keys are in launcher/reference.md"},
    OptionRow{"master-addr", 0, &Options::master_addr, "HOST", "127.0.0.1", Group::kRendezvous,
              kForDoctor | kForExec, "address of node 0, which serves the store"},
    OptionRow{"master-port", 0, &Options::master_port, "PORT", "29500", Group::kRendezvous,
              kForDoctor | kForExec, "port of the store on node 0", 0, 65535},
    OptionRow{"spares", 0, &Options::spares, "K", "0", Group::kRendezvous, kOwn,
              "number of spare nodes. A spare waits and takes the place of a node that is lost"},
    OptionRow{"join-at", 0, &Options::join_at, "now|safe-point[:S]", "now", Group::kRendezvous, kOwn,
              "when a node that comes later joins a job of MIN:MAX nodes. safe-point: when the job has "
              "written a checkpoint, or after S seconds"},
    OptionRow{"iface", 0, &Options::iface, "NAME", "all", Group::kRendezvous, kOwn | kMayBeEmpty | kForDoctor,
              "network interface to use. With c10d, the agent offers and listens on its addresses only"},
    OptionRow{"port-file", 0, &Options::port_file, "FILE", "none", Group::kRendezvous,
              kOwn | kMayBeEmpty | kForDoctor,
              "file that gets the HOST:PORT of the coordinator that this agent runs"},

    // Who may take part, and who can read what the nodes say: rendezvous/protocol.
    OptionRow{"secret-file", 0, &Options::secret_file, "FILE", "MUSTER_SECRET", Group::kSecurity,
              kOwn | kMayBeEmpty | kForDoctor,
              "file with the secret of the job. Only its owner may be able to read it"},
    OptionRow{"tls-ca", 0, &Options::tls_ca, "FILE", "no TLS", Group::kSecurity,
              kOwn | kMayBeEmpty | kForDoctor,
              "certificate authority of the coordinator (PEM). The agent speaks TLS with the coordinator"},
    OptionRow{"tls-cert", 0, &Options::tls_cert, "FILE", "", Group::kSecurity,
              kOwn | kMayBeEmpty | kForDoctor,
              "certificate of this node (PEM). A coordinator on this node shows it, and the agent where it "
              "is asked for one"},
    OptionRow{"tls-key", 0, &Options::tls_key, "FILE", "", Group::kSecurity, kOwn | kMayBeEmpty | kForDoctor,
              "private key of --tls-cert (PEM). Only its owner may be able to read it"},
    OptionRow{"store-proxy", 0, &Options::store_proxy, "", "", Group::kSecurity, kOwn,
              "give the workers their store on 127.0.0.1, over the agent's connection to the coordinator. "
              "The default with a secret or TLS"},
    OptionRow{"no-store-proxy", 0, &Options::no_store_proxy, "", "", Group::kSecurity, kOwn,
              "let the workers connect to the store on the first node. Anybody who reaches its port can use "
              "the store"},

    // What follows from a failure: policies in launcher/job.
    OptionRow{"max-restarts", 0, &Options::max_restarts, "N", "0", Group::kFailures, kCommon,
              "number of restarts of all workers after a failure"},
    OptionRow{"restart-backoff", 0, &Options::restart_backoff, "MIN:MAX", "0", Group::kFailures, kOwn,
              "pause before a restart, in seconds. MIN before the first, doubled each time up to MAX; the "
              "same on all nodes"},
    OptionRow{"restart-on", 0, &Options::restart_on, "FAILURES", "all", Group::kFailures, kOwn | kMayBeEmpty,
              "restart after these failures only: hang, node, oom, signal:SIGBUS, exit:75, exit:64-78 and "
              "the classes of the report. The same on all nodes"},
    OptionRow{
        "no-restart-on", 0, &Options::no_restart_on, "CODES", "none", Group::kFailures, kOwn | kMayBeEmpty,
        "do not restart after these failures. The same words as --restart-on, and 2 or 64-78 for exit codes"},
    OptionRow{"max-restarts-without-progress", 0, &Options::max_restarts_without_progress, "N", "no limit",
              Group::kFailures, kOwn,
              "end the job with exit status 86 after N restarts in a row that reached no further step"},
    OptionRow{"exhausted-exit-code", 0, &Options::exhausted_exit_code, "CODE", "the worker's",
              Group::kFailures, kOwn, "exit status when a worker fails and no restart is left", 1, 255},
    OptionRow{
        "shutdown-timeout", 0, &Options::shutdown_timeout_s, "SECONDS", "30; under Slurm 25",
        Group::kFailures, kCommon | kForDoctor,
        "time between the stop signal and SIGKILL. SIGABRT comes in its last tenth, at most 2 s before. "
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT is used where the option is missing",
        0, 1e6},
    OptionRow{"signals-to-handle", 0, &Options::signals_to_handle, "NAMES", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
              Group::kFailures, kForDoctor, "signals that stop the job. They are passed on to the workers"},
    OptionRow{
        "hang-timeout", 0, &Options::hang_timeout, "SECONDS|auto|off", "auto", Group::kFailures,
        kOwn | kCommon,
        "time without a sign of life after which a worker hangs. auto: judges only workers that report "
        "their progress. SECONDS:START: START until the third sign of life, without it ten times SECONDS"},
    OptionRow{"on-hang", 0, &Options::on_hang, "report|restart|stop", "report", Group::kFailures,
              kOwn | kCommon,
              "what to do about a hang, after a report. The report says what all workers are doing"},
    OptionRow{"cgroup", 0, &Options::cgroup, "auto|off|required", "auto", Group::kFailures,
              kOwn | kChoice | kForDoctor,
              "whether each worker gets a control group, so that everything it started ends with it. auto: "
              "if muster may make control groups"},

    // Where the output of workers goes: launcher/output.
    OptionRow{"log-dir", 0, &Options::log_dir, "DIR", "a temporary one", Group::kOutput,
              kCommon | kMayBeEmpty, "directory of the log files and of report.json"},
    OptionRow{"redirects", 'r', &Options::redirects, "STD", "0", Group::kOutput, 0,
              "write the workers' output to files: 0 none, 1 stdout, 2 stderr, 3 both; or RANK:STD,RANK:STD"},
    OptionRow{"tee", 't', &Options::tee, "STD", "0", Group::kOutput, kCommon,
              "show and write to files: 0 none, 1 stdout, 2 stderr, 3 both. Or RANK:STD,RANK:STD"},
    OptionRow{"view", 0, &Options::view, "all|rank0|fold", "all", Group::kOutput, kOwn | kCommon,
              "what to show of the output. rank0: rank 0, and other ranks from their first error; fold: "
              "equal lines once, as [x8]"},
    OptionRow{"local-ranks-filter", 0, &Options::local_ranks_filter, "N,N", "all", Group::kOutput,
              kMayBeEmpty, "show the output of these local ranks only"},
    OptionRow{"ranks-filter", 0, &Options::ranks_filter, "N,N-M", "all", Group::kOutput, kOwn | kMayBeEmpty,
              "show the output of these global ranks only"},
    OptionRow{"log-line-prefix-template", 0, &Options::log_line_prefix_template, "TEXT",
              "[${role_name}${local_rank}]:", Group::kOutput, kKeepsEmpty,
              "prefix of each line. Known are role_name, local_rank, rank, hostname, host, generation, "
              "restart and time"},
    OptionRow{"log-max-size", 0, &Options::log_max_size, "BYTES", "no limit", Group::kOutput, kOwn,
              "size at which a log file is rotated. FILE becomes FILE.1 at the end of a line; K, M and G "
              "multiply by 1024"},
    OptionRow{"log-keep", 0, &Options::log_keep, "N", "5", Group::kOutput, kOwn,
              "number of rotated files to keep (FILE.1 is the newest). Needs --log-max-size"},
    OptionRow{
        "duplicate-stdout-filters", 0, &Options::duplicate_stdout_filters, "TEXT,TEXT", "", Group::kOutput,
        kKeepsEmpty,
        "copy lines of stdout with one of these texts to filtered_stdout.log. Needs -t 1; ',,' is a comma"},
    OptionRow{"duplicate-stderr-filters", 0, &Options::duplicate_stderr_filters, "TEXT,TEXT", "",
              Group::kOutput, kKeepsEmpty,
              "copy lines of stderr with one of these texts to filtered_stderr.log. Needs -t 2"},

    // Where workers run and whether the node is healthy enough for them: launcher/hardware, launcher/checks.
    OptionRow{"gpus", 0, &Options::gpus, "N,N-N|UUID", "all", Group::kPlacement, kOwn | kCommon,
              "GPUs of this node to use, as nvidia-smi counts them. Also sets --nproc-per-node"},
    OptionRow{"bind", 0, &Options::bind, "none|numa|core|socket", "none", Group::kPlacement, kOwn | kCommon,
              "bind each worker to CPUs near its GPU. Without GPUs: to its share of the CPUs"},
    OptionRow{"numa-binding", 0, &Options::numa_binding, "MODE", "", Group::kPlacement, kTypedOnly,
              "the same as --bind with torchrun's modes: node, socket, exclusive, core-complex"},
    OptionRow{"oversubscribe", 0, &Options::oversubscribe, "", "", Group::kPlacement, kOwn,
              "let several workers share a GPU of --gpus, or a core to bind to"},
    OptionRow{"virtual-local-rank", 0, &Options::virtual_local_rank, "", "", Group::kPlacement, kForExec,
              "give every worker LOCAL_RANK=0 and one visible GPU"},
    OptionRow{"report-bindings", 0, &Options::report_bindings, "", "", Group::kPlacement, kOwn,
              "print the GPU, NUMA node, CPUs and memory of each worker on stderr"},
    OptionRow{"preflight", 0, &Options::preflight, "quick|full|off", "off", Group::kPlacement,
              kOwn | kCommon | kChoice,
              "check driver, GPUs, disks and limits before the start. An unhealthy node says why and does "
              "not take part. full: also runs a computation on every device"},
    OptionRow{"doctor", 0, &Options::doctor, "", "", Group::kPlacement, kOwn | kTypedOnly,
              "check that each node can reach each other node, instead of running the program. The first "
              "node prints the result"},
    OptionRow{"dry-run", 0, &Options::dry_run, "", "", Group::kPlacement, kOwn | kCommon | kForDoctor,
              "print placement and environment of the workers, start nothing. Of this node only"},

    // Other ways to start, and ways to look at a running job: launcher/plan, launcher/telemetry,
    // launcher/ctl.
    OptionRow{
        "srun", 0, &Options::srun, "", "", Group::kRunning, kOwn | kCommon,
        "in a Slurm batch script: start an agent on each node. Also in the shell of salloc; it runs srun"},
    OptionRow{"exec", 0, &Options::exec, "", "", Group::kRunning, kOwn | kForExec,
              "in a Slurm task (srun -n N): become the program, as the worker with the rank of the task. No "
              "agent stays"},
    OptionRow{"no-slurm", 0, &Options::no_slurm, "", "", Group::kRunning, kOwn | kForDoctor,
              "ignore Slurm's variables. Nodes, ranks and endpoint are then options"},
    OptionRow{"detach", 0, &Options::detach, "", "", Group::kRunning, kOwn | kCommon | kTypedOnly,
              "run without this terminal, for musterctl to find. Prints the name of the job"},
    OptionRow{"job-name", 0, &Options::job_name, "NAME", "from the program's name", Group::kRunning,
              kOwn | kMayBeEmpty, "name of the job for musterctl. Needs --detach"},
    OptionRow{"metrics-addr", 0, &Options::metrics_addr, "HOST:PORT", "off", Group::kRunning,
              kOwn | kMayBeEmpty,
              "address that serves /healthz and /metrics (Prometheus). PORT alone: on 127.0.0.1. Port 0: a "
              "free port, which is printed"},
    OptionRow{"events", 0, &Options::events, "FILE", "none", Group::kRunning, kOwn | kMayBeEmpty,
              "append a line of JSON to this file for each event of the job. {host} is replaced"},

    // Each of these ends the parse: it must work where PET_* variables are wrong.
    OptionRow{"help", 'h', &Options::help, "", "", Group::kHelp, kCommon | kTypedOnly, "print this text"},
    OptionRow{"help-all", 0, &Options::help_all, "", "", Group::kHelp, kOwn | kCommon | kTypedOnly,
              "print all options and exit codes"},
    OptionRow{"version", 0, &Options::version, "", "", Group::kHelp, kOwn | kCommon | kTypedOnly,
              "print the version"},
    OptionRow{"print-completion", 0, &Options::print_completion, "bash|zsh|fish|tcsh", "", Group::kHelp,
              kTypedOnly | kChoice, "print the completion script for this shell"},

    // torchrun's command lines work, though these settings have no meaning here.
    OptionRow{"monitor-interval", 0, &Options::monitor_interval_s, "SECONDS", "0.1", Group::kTorchrun,
              kNoEffect, "no effect: muster learns of an exit at once", 1e-6, 1e9},
    OptionRow{"start-method", 0, &Options::start_method, "spawn|fork|forkserver", "spawn", Group::kTorchrun,
              kNoEffect | kChoice, "no effect: every worker is a new process"},
    OptionRow{"event-log-handler", 0, &Options::event_log_handler, "null|console|dynamic_rendezvous", "null",
              Group::kTorchrun, kNoEffect | kChoice, "no effect: use --events=FILE"},
    OptionRow{"logs-specs", 0, &Options::logs_specs, "NAME", "", Group::kTorchrun, kTypedOnly | kRefused,
              "not supported: it names a Python plug-in; use --log-dir, -r and -t"},
};

}  // namespace muster::launcher
